"""ONNX Runtime: any region, since it has every ONNX operator and its own `com.microsoft` ones.

The variants differ in the level of graph optimisation. At the highest level, convolutions run in a blocked
layout (NCHWc) with reorders at the region's borders; a short region may be faster without. Regions without a
convolution are equal in both variants and are candidates once.

Values with data-dependent shapes are allowed inside a region, and at its outputs where the function returns
them: such a kernel allocates its outputs. Where a loop with a partitioned body makes such a value, the
operators before and after the loop are regions too.
"""

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, PluginKernel
from collage.backends.common.onnxruntime import (
    ConvolutionVariants,
    cpu_session_kernel,
    onnxruntime_availability,
)
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, index_set
from collage.rules.group_parts import GroupParts
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Union

OPTIMISATION_LEVELS = {"": "all", "extended": "extended"}
"""ONNX Runtime's level of graph optimisation by variant."""


class OnnxRuntimeBackend(Backend):
    """Regions as ONNX models in ONNX Runtime sessions (style GRAPH)."""

    name = "onnxruntime"
    style = BackendStyle.GRAPH
    variants = tuple(OPTIMISATION_LEVELS)
    draws_random_numbers = True

    def availability(self) -> Availability:
        return onnxruntime_availability()

    def unsupported(self, function: Function, node: int) -> str | None:
        return None

    def rule(self, function: Function) -> PartitionRule:
        driven = index_set(body.node for body in function.bodies)
        regions = ConvolutionVariants.of(
            function.graph, function.graph.everything & ~function.drawing
        )
        return Union((regions, GroupParts(driven))) if driven else regions

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        if variant not in OPTIMISATION_LEVELS:
            raise BackendError(f"onnxruntime has no variant {variant!r}")
        return cpu_session_kernel(function, nodes, context.threads, OPTIMISATION_LEVELS[variant])

"""ONNX Runtime: any region, because it runs every ONNX operator and its own `com.microsoft` ones.

The variants differ in the last graph optimisation. With all of them, convolutions run in a blocked
layout (NCHWc) with reorders at the region's borders; a short region may be faster without. Regions
without a convolution are the same in both, and are offered once.

Values whose shape depends on data are welcome inside a region, and at its outputs where the function
returns them: such a kernel allocates its outputs.
"""

from dataclasses import dataclass

import numpy as np

from collage.backends.base import Availability, Backend, BackendStyle, PluginKernel
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import returned_open
from collage.graph.index_set import IndexSet, index_set
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import library_reason, library_version

LIBRARY = "onnxruntime"
LEVELS = {"": "all", "extended": "extended"}


@dataclass(frozen=True)
class ConvolutionVariants(PartitionRule):
    """The default regions; in all variants but those for all of them those with a convolution."""

    regions: Regions
    convolutions: IndexSet
    for_all: frozenset[str]

    @classmethod
    def of(cls, graph: DataflowGraph, supported: IndexSet, *more: str) -> "ConvolutionVariants":
        """Return the rule; the first variant, "", and `more` are for all regions."""
        convolutions = index_set(node.index for node in graph.nodes if node.op == "Conv")
        return cls(Regions(supported), convolutions, frozenset(("", *more)))

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = self.regions.candidates(graph, spec)
        if spec.variant in self.for_all:
            return found
        return [one for one in found if one.inside & self.convolutions]


class OnnxRuntimeBackend(Backend):
    """Regions as ONNX models in ONNX Runtime sessions."""

    name = "onnxruntime"
    style = BackendStyle.GRAPH
    variants = tuple(LEVELS)

    def availability(self) -> Availability:
        if reason := library_reason(LIBRARY):
            return Availability(reason)
        return Availability("", {LIBRARY: library_version(LIBRARY)})

    def unsupported(self, function: Function, node: int) -> str | None:
        return None

    def rule(self, function: Function) -> PartitionRule:
        return ConvolutionVariants.of(function.graph, function.graph.everything)

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        from collage.frontend.region import region_onnx

        if variant not in LEVELS:
            raise BackendError(f"onnxruntime has no variant {variant!r}")
        allocates = returned_open(function.graph, nodes)
        header: Header = {"graph_optimization_level": LEVELS[variant], "threads": threads}
        header = {**header, "allocates": 1} if allocates else header
        model = region_onnx(function, nodes).SerializeToString()
        blob = pack(header, [np.frombuffer(model, np.uint8)])
        return PluginKernel("onnxruntime", blob, allocates)

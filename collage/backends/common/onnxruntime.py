"""ONNX Runtime on the CPU: availability, kernels, and its candidates by variant.

Its kernels run regions of the CPU backend, and regions on the host inside an executable for a GPU.
"""

import logging
from dataclasses import dataclass

import numpy as np
import onnx

from collage.backends.base import Availability, PluginKernel
from collage.frontend.model import Function
from collage.frontend.onnx_proto import sub_graphs
from collage.frontend.onnxruntime_session import first_line, session
from collage.frontend.region import region_onnx
from collage.graph.dataflow import DataflowGraph
from collage.graph.dynamic_shape_groups import passes_on_dynamic_shape
from collage.graph.index_set import IndexSet, index_set
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.wrap import Primitive
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import library_reason, library_version

log = logging.getLogger(__name__)

_IDLE = "collage/idle"
"""Operand and prefix of the results of idle nodes."""
ONNXRUNTIME = "onnxruntime"
"""Name of the library, and kind of the plug-in's kernel."""


@dataclass(frozen=True)
class ConvolutionVariants(PartitionRule):
    """Graph regions; variants outside of `for_all` are limited to regions with a convolution.

    Attributes:
        regions: rule for all regions.
        convolutions: the graph's convolutions.
        for_all: variants with candidates for every region.
    """

    regions: PartitionRule
    convolutions: IndexSet
    for_all: frozenset[str]

    @classmethod
    def of(cls, graph: DataflowGraph, supported: IndexSet, *variants: str) -> "ConvolutionVariants":
        """Return the rule; the first variant, "", and `variants` are for all regions."""
        convolutions = index_set(node.index for node in graph.nodes if node.op == "Conv")
        return cls(Primitive(Regions(supported)), convolutions, frozenset(("", *variants)))

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        candidates = self.regions.candidates(graph, spec)
        if spec.variant in self.for_all:
            return candidates
        return [candidate for candidate in candidates if candidate.inside & self.convolutions]


def onnxruntime_availability() -> Availability:
    """Tell whether ONNX Runtime's library is installed, with its version."""
    if reason := library_reason(ONNXRUNTIME):
        return Availability(reason)
    return Availability("", {ONNXRUNTIME: library_version(ONNXRUNTIME)})


def _with_own_draws(model: onnx.ModelProto, function: Function, nodes: IndexSet) -> onnx.ModelProto:
    """Put idle nodes before a drawing node, as many as nodes of the function draw before it.

    ONNX Runtime seeds a generator by the node's position in its graph: the same draw would come out of
    every session that holds one node.
    """
    if not nodes & function.drawing:
        return model
    earlier = function.drawing & ((nodes & -nodes) - 1)
    graph = model.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), _IDLE))
    idle = [
        onnx.helper.make_node("Identity", [_IDLE], [f"{_IDLE}/{number}"])
        for number in range(earlier.bit_count())
    ]
    drawing = list(graph.node)
    del graph.node[:]
    graph.node.extend([*idle, *drawing])
    return model


def cpu_session_kernel(
    function: Function, nodes: IndexSet, threads: int, optimisation: str = "all"
) -> PluginKernel:
    """Return a kernel for a region: an ONNX Runtime session on the CPU.

    Args:
        function: function of the region.
        nodes: nodes of the region.
        threads: threads of the session.
        optimisation: ONNX Runtime's level of graph optimisation.
    """
    allocates = passes_on_dynamic_shape(function.graph, nodes)
    header: Header = {"graph_optimization_level": optimisation, "threads": threads}
    header = {**header, "allocates": 1} if allocates else header
    model = _with_own_draws(region_onnx(function, nodes), function, nodes)
    bodies = [body for node in model.graph.node for body in sub_graphs(node)]
    if bodies and not _opens(model, optimisation):
        _forget_dimensions(model)
    blob = pack(header, [np.frombuffer(model.SerializeToString(), np.uint8)])
    return PluginKernel(ONNXRUNTIME, blob, allocates, libraries=frozenset({ONNXRUNTIME}))


def _opens(model: onnx.ModelProto, optimisation: str) -> bool:
    """Tell whether ONNX Runtime opens the model of a region."""
    try:
        session(model.SerializeToString(), f"ORT_ENABLE_{optimisation.upper()}")
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
        log.debug("ONNX Runtime does not open a region with bodies: %s", first_line(error))
        return False
    return True


def _forget_dimensions(model: onnx.ModelProto) -> None:
    """Keep the ranks of the inputs only.

    A body may have branches for other shapes (squeeze where a dimension is 1, else not). With static
    shapes ONNX Runtime infers the rank of the branch that is never taken, and refuses what follows.
    """
    for value in model.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.Clear()

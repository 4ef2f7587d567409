"""Regions on the CPU inside an executable for a GPU: ONNX Runtime between two copies.

The kernel's arguments are device tensors; it copies its inputs to the host, runs there, and copies its
outputs back. The copies are part of its measured cost. Small regions, and operators without a GPU kernel in
any toolchain, compete like any candidate. The kernel waits for the device, so a plan with one is not captured
in a CUDA graph. Large products are refused.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from collage.backends.base import Availability, BackendStyle, BuildContext, PluginKernel
from collage.backends.common.onnxruntime import cpu_session_kernel, onnxruntime_availability
from collage.backends.nvidia.libraries import CUDART
from collage.backends.nvidia.toolchain import CudaBackend
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, is_subset
from collage.graph.sub_graph import SubGraph
from collage.rules.base_rules import Singles
from collage.rules.regions import maximal_regions, short_intervals
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.wrap import Primitive
from collage.runtime.blob import Header, pack

SHORT = 3
MOST_FLOP = 4_000_000
"""Largest product on the host: about the work of one core in the time of a copy."""
HEAVY = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


@dataclass(frozen=True)
class HostRegions(PartitionRule):
    """Single nodes, short regions, and maximal regions: few candidates, since few of them win."""

    supported: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        by_nodes = {
            candidate.inside: candidate
            for candidate in Singles(self.supported).candidates(graph, spec)
        }
        for origin, regions in (
            ("short", short_intervals(graph, SHORT)),
            ("maximal", maximal_regions(graph, self.supported)),
        ):
            for region in regions:
                if is_subset(region, self.supported) and region not in by_nodes:
                    candidate = Candidate(SubGraph(graph, region), spec, f"HostRegions.{origin}")
                    by_nodes[region] = candidate
        return list(by_nodes.values())


class OnHostBackend(CudaBackend):
    """ONNX Runtime on the CPU between copies (style GRAPH)."""

    name = "onnxruntime-host"
    style = BackendStyle.GRAPH
    needs = (CUDART,)
    kind = "on_host"
    draws_random_numbers = True
    graph_capturable = False
    computes_on_host = True

    def runtime_requirements(self) -> tuple[Availability, ...]:
        return (onnxruntime_availability(),)

    @property
    def group(self) -> str:
        return "host"

    def unsupported(self, function: Function, node: int) -> str | None:
        graph_node, types = function.graph.nodes[node], function.graph.types
        for value in filter(None, (*graph_node.inputs, *graph_node.outputs)):
            if value not in types:
                return f"the shape of {value!r} depends on data"
        if graph_node.op not in HEAVY:
            return None
        weights = types[graph_node.inputs[1]].shape
        reduced = prod(weights[1:]) if graph_node.op.startswith("Conv") else weights[-2:][0]
        flop = 2 * prod(types[graph_node.outputs[0]].shape) * reduced
        if flop <= MOST_FLOP:
            return None
        return f"a product of {flop / 1e6:.0f} MFLOP is far slower on the CPU"

    def rule(self, function: Function) -> PartitionRule:
        return Primitive(HostRegions(self.supported_nodes(function) & ~function.drawing))

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        if variant:
            raise BackendError(f"{self.name} has no variant {variant!r}")
        inputs, _ = region_values(function, nodes)
        inner = cpu_session_kernel(function, nodes, context.threads)
        header: Header = {"kind": inner.kind, "inputs": len(inputs)}
        blob = pack(header, [np.frombuffer(inner.blob, np.uint8)])
        return PluginKernel(
            self.kind, blob, graph_capturable=self.graph_capturable, libraries=inner.libraries
        )

"""Regions on the CPU inside an executable for a GPU: ONNX Runtime between two copies.

The kernel takes and gives device tensors like any other; it copies its inputs to the host, runs there, and
copies its outputs back. So the copies are in its measured cost, and a small region that suits the host, or
an operator that no toolchain has on the GPU, competes like any candidate. It waits for the device, so
a plan with one is not captured in a CUDA graph. Large products are refused: no copy is worth them.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from collage.backends.base import Availability, BackendStyle, PluginKernel
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
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
from collage.runtime.blob import Header, pack

SHORT = 3
MOST_FLOP = 4_000_000
"""Largest product that may stay on the host: about what one core does in the time of a copy."""
HEAVY = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


@dataclass(frozen=True)
class HostRegions(PartitionRule):
    """Single nodes, short regions, and the maximal ones: few, since few of them win."""

    supported: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = {one.inside: one for one in Singles(self.supported).candidates(graph, spec)}
        for origin, regions in (
            ("short", short_intervals(graph, SHORT)),
            ("maximal", maximal_regions(graph, self.supported)),
        ):
            for region in regions:
                if is_subset(region, self.supported) and region not in found:
                    made = Candidate(SubGraph(graph, region), spec, f"HostRegions.{origin}")
                    found[region] = made
        return list(found.values())


class OnHostBackend(CudaBackend):
    """ONNX Runtime on the CPU, with copies (style GRAPH)."""

    name = "onnxruntime-host"
    style = BackendStyle.GRAPH
    needs = (CUDART,)
    kind = "on_host"
    captures = False

    def further(self) -> tuple[Availability, ...]:
        return (OnnxRuntimeBackend().availability(),)

    @property
    def group(self) -> str:
        return "host"

    def unsupported(self, function: Function, node: int) -> str | None:
        found, types = function.graph.nodes[node], function.graph.types
        for value in filter(None, (*found.inputs, *found.outputs)):
            if value not in types:
                return f"the shape of {value!r} depends on data"
        if found.op not in HEAVY:
            return None
        weights = types[found.inputs[1]].shape
        reduced = prod(weights[1:]) if found.op.startswith("Conv") else weights[-2:][0]
        flop = 2 * prod(types[found.outputs[0]].shape) * reduced
        if flop <= MOST_FLOP:
            return None
        return f"a product of {flop / 1e6:.0f} MFLOP is far slower on the CPU"

    def rule(self, function: Function) -> PartitionRule:
        count = range(len(function.graph))
        return HostRegions(sum(1 << i for i in count if self.unsupported(function, i) is None))

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        if variant:
            raise BackendError(f"{self.name} has no variant {variant!r}")
        inputs, _ = region_values(function, nodes)
        inner = OnnxRuntimeBackend().compile(function, nodes, threads)
        header: Header = {"kind": inner.kind, "inputs": len(inputs)}
        blob = pack(header, [np.frombuffer(inner.blob, np.uint8)])
        return PluginKernel(self.kind, blob, captures=self.captures)

"""ONNX Runtime: any region, because it runs every ONNX operator and its own `com.microsoft` ones.

The variants differ in the last graph optimisation. With all of them, convolutions run in a blocked
layout (NCHWc) with reorders at the region's borders; a short region may be faster without. Regions
without a convolution are the same in both, and are offered once.
"""

from dataclasses import dataclass

import numpy as np

from collage.backends.base import Availability, Backend, BackendStyle, PluginKernel
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.runtime.blob import Header, pack
from collage.runtime.plugin import library_reason, library_version

LIBRARY = "onnxruntime"
LEVELS = {"": "all", "extended": "extended"}


@dataclass(frozen=True)
class _Regions(PartitionRule):
    """The default regions; in the second variant those with a convolution."""

    regions: Regions
    convolutions: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = self.regions.candidates(graph, spec)
        return [one for one in found if not spec.variant or one.inside & self.convolutions]


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
        for value in function.graph.nodes[node].outputs:
            if value and value not in function.graph.types:
                return f"the shape of {value!r} depends on data"
        return None

    def rule(self, function: Function) -> PartitionRule:
        nodes = range(len(function.graph))
        return _Regions(
            Regions(index_set(i for i in nodes if self.unsupported(function, i) is None)),
            index_set(i for i in nodes if function.graph.nodes[i].op == "Conv"),
        )

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        from collage.frontend.region import region_onnx

        if variant not in LEVELS:
            raise BackendError(f"onnxruntime has no variant {variant!r}")
        header: Header = {"graph_optimization_level": LEVELS[variant], "threads": threads}
        model = region_onnx(function, nodes).SerializeToString()
        return PluginKernel("onnxruntime", pack(header, [np.frombuffer(model, np.uint8)]))

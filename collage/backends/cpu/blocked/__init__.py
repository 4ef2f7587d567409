"""Regions of the plug-in's own kernels in blocked layout: pointwise, depthwise and other convolutions.

Libraries compute one convolution at a time: the expanded activations of an inverted residual block,
the largest values of mobile networks, go to memory and come back. Here a 1x1 convolution and the
depthwise one after it are computed together, a few rows and channels at a time; the means that
squeeze-and-excite asks for are summed on the way; its factors are folded into the weights of the
projection; activations and residuals are applied to results in the first level cache. Layouts are
converted at the region's borders only. A product with a constant matrix is a 1x1 convolution whose
pixels are the rows; parallel ones (queries, keys and values) share the packed left side and run one
after the other over their packed weights, each into its own result. See native/kernels/blocked.h.
"""

from dataclasses import dataclass

from collage.backends.base import Availability, Backend, BackendStyle, PluginKernel
from collage.backends.common.native_kernels import kernels_availability
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set
from collage.rules.parallel_products import Parallel
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.wrap import Union

KIND = "blocked"
PRODUCTS = ("Conv", "MatMul", "Gemm")
REVISION = "1"
"""Part of every cost's key: kernels that change invalidate what was measured with the old ones."""


class BlockedBackend(Backend):
    """Regions of convolutions in blocked layout."""

    name = "blocked"
    style = BackendStyle.LIBRARY

    def availability(self) -> Availability:
        return kernels_availability(self.name, REVISION)

    def unsupported(self, function: Function, node: int) -> str | None:
        if reason := refusal(function, node):
            return reason
        if (op := function.graph.nodes[node].op) not in PRODUCTS:
            return f"{op} is only taken together with a convolution or matrix product"
        return None

    def rule(self, function: Function) -> PartitionRule:
        """Return the regions of supported nodes that hold a product, and parallel products."""
        count = len(function.graph)
        supported = index_set(i for i in range(count) if refusal(function, i) is None)
        anchors = index_set(n.index for n in function.graph.nodes if n.op in PRODUCTS)
        return Union(
            (Anchored(Regions(supported), anchors), Parallel(anchors & supported, supported))
        )

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        from collage.backends.cpu.blocked.lower import Lowering
        from collage.backends.cpu.blocked.program import ProgramBuilder, fused
        from collage.backends.cpu.onednn.activations import all_activations
        from collage.backends.cpu.onednn.fuse import plan_steps
        from collage.frontend.region import region_values

        inputs, outputs = region_values(function, nodes)
        lowering = Lowering()
        for name in inputs:
            lowering.declare(name, function.graph.types[name].shape)
        activations = all_activations(function) if nodes.bit_count() > 1 else []
        for draft in plan_steps(function, nodes, outputs, activations):
            lowering.add(draft)
        steps = fused(lowering.steps, outputs)
        program = ProgramBuilder(lowering.shapes, lowering.rows)
        blob = program.blob(steps, inputs, outputs, {"threads": threads})
        return PluginKernel(KIND, blob)


def refusal(function: Function, node: int) -> str | None:
    """Return why no region of this backend may hold the node, or None."""
    from collage.backends.cpu.blocked.lower import Lowering
    from collage.backends.cpu.onednn.translate import translate
    from collage.backends.cpu.onednn.view import NodeView
    from collage.frontend.region import region_values

    lowering = Lowering()
    try:
        drafts = translate(NodeView(function, node))
        inputs, _ = region_values(function, 1 << node)
        for name in inputs:
            lowering.declare(name, function.graph.types[name].shape)
        for draft in drafts:
            lowering.add(draft)
    except BackendError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Anchored(PartitionRule):
    """The sub-rule's candidates that hold one of `anchors`."""

    rule: PartitionRule
    anchors: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        found = self.rule.candidates(graph, spec)
        return [candidate for candidate in found if candidate.inside & self.anchors]

"""Convolutions and products in blocked layout, by kernels of the plug-in's own.

Libraries compute one convolution at a time: the expanded activations of an inverted residual block, the
largest values of mobile networks, are written to memory and read back. Here a 1x1 convolution and the
depthwise convolution after it are computed together, a few rows and channels at a time. The means of
squeeze-and-excite are summed in the same pass; its factors are folded into the weights of the projection;
activations and residuals are applied to results in the first-level cache. Layouts are converted at the
region's borders only. A product with a constant matrix is a 1x1 convolution over its rows; parallel products
(queries, keys and values) share the packed left operand. See native/kernels/blocked.h.
"""

from dataclasses import dataclass

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, PluginKernel
from collage.backends.common.native_kernels import kernels_availability
from collage.backends.common.primitives.composite_activations import all_activations
from collage.backends.common.primitives.fusion import region_primitives
from collage.backends.common.primitives.node_view import NodeView
from collage.backends.common.primitives.translate import translate
from collage.backends.cpu.blocked.lower import Lowering
from collage.backends.cpu.blocked.program import BlockedProgramBuilder, fused
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set
from collage.rules.parallel_products import parallel_products
from collage.rules.regions import Regions
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec
from collage.rules.wrap import Primitive, Union

PRODUCTS = ("Conv", "MatMul", "Gemm")
BLOCKED_REVISION = "1"
"""In every cost key: a new revision of the kernels invalidates the costs of the old ones."""


class BlockedBackend(Backend):
    """Regions of convolutions in blocked layout."""

    name = "blocked"
    style = BackendStyle.LIBRARY

    def availability(self) -> Availability:
        return kernels_availability(self.name, BLOCKED_REVISION)

    def unsupported(self, function: Function, node: int) -> str | None:
        if reason := refusal(function, node):
            return reason
        if (op := function.graph.nodes[node].op) not in PRODUCTS:
            return f"{op} is only taken together with a convolution or matrix product"
        return None

    def rule(self, function: Function) -> PartitionRule:
        """Return the regions of supported nodes with a product, and parallel products."""
        count = len(function.graph)
        supported = index_set(i for i in range(count) if refusal(function, i) is None)
        anchors = index_set(n.index for n in function.graph.nodes if n.op in PRODUCTS)
        parallel = parallel_products(anchors & supported, supported)
        return Primitive(Union((Anchored(Regions(supported), anchors), parallel)))

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        inputs, outputs = region_values(function, nodes)
        lowering = Lowering()
        for name in inputs:
            lowering.declare(name, function.graph.types[name].shape)
        activations = all_activations(function) if nodes.bit_count() > 1 else []
        for primitive in region_primitives(function, nodes, outputs, activations):
            lowering.add(primitive)
        steps = fused(lowering.steps, outputs)
        program = BlockedProgramBuilder(lowering.shapes, lowering.rows)
        blob = program.blob(steps, inputs, outputs, {"threads": context.threads})
        return PluginKernel("blocked", blob, libraries=frozenset())


def refusal(function: Function, node: int) -> str | None:
    """Return why this backend computes the node in no region, None where it does."""
    lowering = Lowering()
    try:
        primitives = translate(NodeView(function, node))
        inputs, _ = region_values(function, 1 << node)
        for name in inputs:
            lowering.declare(name, function.graph.types[name].shape)
        for primitive in primitives:
            lowering.add(primitive)
    except BackendError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Anchored(PartitionRule):
    """The sub-rule's candidates with at least one node of `anchors`."""

    rule: PartitionRule
    anchors: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        candidates = self.rule.candidates(graph, spec)
        return [candidate for candidate in candidates if candidate.inside & self.anchors]

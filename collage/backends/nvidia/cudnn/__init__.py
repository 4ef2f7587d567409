"""cuDNN: convolutions with an epilogue, attention and norms as operation graphs; softmax and pooling.

A composite label says which implementation computes a region. "convolution", "norm", "attention" and
"rms_norm" become a graph of operations for the plug-in (`graph_builder`). cuDNN's heuristics propose engines
for the graph; the first three suitable ones are variants. float32 is computed in float32: engines with TF32
are left out, except in the reduced variants of convolutions. "operation" (softmax over the last axis, pooling
and batch norm of running statistics) uses the older descriptor interface, channels-first.

Steps before a convolution's activation are folded into its weights and bias. Tensors are channels-first as in
ONNX; for channels-last engines, the copies are part of the kernel and of its cost.
"""

from collections.abc import Callable, Sequence

from collage.backends.base import BackendStyle, BuildContext, PluginKernel
from collage.backends.nvidia.chain import ChainRule
from collage.backends.nvidia.cudnn.attention import (
    ATTENTION_LABEL,
    AttentionRule,
    describe_attention,
)
from collage.backends.nvidia.cudnn.convolution import convolution_refusal, read_convolution
from collage.backends.nvidia.cudnn.graph_builder import CudnnGraphBuilder
from collage.backends.nvidia.cudnn.norm import (
    CHANNELS,
    RMS_NORM_LABEL,
    ROWS,
    RmsNormRule,
    describe_norm,
    describe_rms_norm,
)
from collage.backends.nvidia.cudnn.operations import dtype_of, refusal, single_operation
from collage.backends.nvidia.libraries import CUDART, CUDNN
from collage.backends.nvidia.toolchain import CudaBackend, register_with_plugin, with_tf32
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, index_set, indices
from collage.rules.base_rules import OpPredicate
from collage.rules.composites import LabelledNodes
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Composite, Union
from collage.runtime.blob import pack
from collage.runtime.plugin import library_reason

VARIANTS = {"": 0, "heuristic-2": 1, "heuristic-3": 2}
"""Rank of the engine among the heuristic's proposals."""
COMPILERS = ("nvrtc", "nvrtc_builtins")
"""Libraries of cuDNN's run-time compiled engines; without them it proposes other engines."""


class CudnnBackend(CudaBackend):
    """Convolutions with an epilogue, attention, norms, softmax and pooling (style LIBRARY)."""

    name = "cudnn"
    style = BackendStyle.LIBRARY
    needs = (CUDNN, CUDART)
    kind = "cudnn"
    variants = tuple(VARIANTS)
    reduced = with_tf32(VARIANTS)
    labels = ("convolution", "operation", "norm", ATTENTION_LABEL, RMS_NORM_LABEL)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node)

    def rule(self, function: Function) -> PartitionRule:
        """Return one composite for each implementation."""
        supported = self.supported_nodes(function)
        nodes = {
            label: index_set(
                node.index
                for node in function.graph.nodes
                if supported >> node.index & 1 and operation_label(node) == label
            )
            for label in ("convolution", "operation", "norm")
        }
        chains = ChainRule.of(function, nodes["convolution"], convolution_refusal, self.reduced)
        return Union(
            (
                Composite("convolution", chains),
                *(
                    Composite(label, OpPredicate(_only(nodes[label])))
                    for label in ("operation", "norm")
                ),
                Composite(ATTENTION_LABEL, AttentionRule(function)),
                Composite(RMS_NORM_LABEL, RmsNormRule(function)),
            )
        )

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        return self._kernel(function, nodes, variant, implied_label(function, nodes))

    def compile_labelled(
        self,
        function: Function,
        nodes: IndexSet,
        context: BuildContext,
        *,
        variant: str,
        composites: Sequence[LabelledNodes],
    ) -> PluginKernel:
        if [composite.nodes for composite in composites] != [nodes]:
            raise BackendError("cuDNN computes one composite in a kernel")
        return self._kernel(function, nodes, variant, composites[0].label)

    def _kernel(
        self, function: Function, nodes: IndexSet, variant: str, label: str
    ) -> PluginKernel:
        exact, rounds = self.read_variant(variant)
        register_with_plugin("cudnn", CUDNN)
        register_with_plugin("cudart", CUDART)
        if label == "operation":
            if variant:
                raise BackendError("cuDNN has one algorithm for this")
            if nodes.bit_count() != 1:
                raise BackendError("cuDNN's descriptor interface computes one operator")
            blob = pack(*single_operation(function, nodes.bit_length() - 1))
            return PluginKernel(self.kind, blob, libraries=frozenset({"cudnn"}))
        region = describe(function, nodes, VARIANTS[exact], label=label, rounds=rounds)
        header = region.header(dtype_of(function, next(iter(indices(nodes)))), rounds=rounds)
        compilers = [name for name in COMPILERS if not library_reason(name)]
        header["libraries"] = compilers
        blob = pack(header, region.constants)
        return PluginKernel(self.kind, blob, libraries=frozenset({"cudnn", *compilers}))


def _only(nodes: IndexSet) -> Callable[[DataflowGraph, int], str | None]:
    """Return a predicate for `OpPredicate` that accepts `nodes`."""
    return lambda graph, index: None if nodes >> index & 1 else "another implementation's"


def operation_label(node: Node) -> str:
    """Return the label of the implementation of one supported node."""
    if node.op == "Conv":
        return "convolution"
    return "norm" if node.op in (*ROWS, *CHANNELS) else "operation"


def implied_label(function: Function, nodes: IndexSet) -> str:
    """Return the label of a region that no rule has labelled."""
    members = [function.graph.nodes[index] for index in indices(nodes)]
    ops = {node.op for node in members}
    if "Conv" in ops:
        return "convolution"
    if len(members) == 1:
        return operation_label(members[0])
    return ATTENTION_LABEL if "Softmax" in ops else RMS_NORM_LABEL


def describe(
    function: Function, nodes: IndexSet, rank: int, *, label: str, rounds: bool = False
) -> CudnnGraphBuilder:
    """Describe a region of the graph interface.

    Args:
        function: function of the region.
        nodes: nodes of the region.
        rank: rank of the heuristic's proposal.
        label: label of the implementation, any but "operation".
        rounds: whether float32 products are computed in TF32.

    Raises:
        BackendError: cuDNN has no graph for the region.
    """
    if label == "convolution":
        return read_convolution(function, nodes, rank, rounds=rounds)
    if rounds:
        raise BackendError("cuDNN's graphs without a convolution have nothing in TF32")
    if label == ATTENTION_LABEL:
        return describe_attention(function, nodes, rank)
    if label == RMS_NORM_LABEL:
        return describe_rms_norm(function, nodes, rank)
    index = nodes.bit_length() - 1
    if nodes.bit_count() != 1 or operation_label(function.graph.nodes[index]) != label:
        raise BackendError(f"the region is no {label} of one operator")
    if reason := refusal(function, index):
        raise BackendError(reason)
    return describe_norm(function, function.graph.nodes[index], rank)

"""cuDNN: convolutions with an epilogue, attention and norms as operation graphs; softmax and pooling.

A region becomes a graph of operations for the plug-in (`graph_builder`). cuDNN's heuristics propose engines
for the graph; the first three suitable ones are variants. float32 is computed in float32: engines with TF32
are left out, except in the reduced variants of convolutions. Softmax over the last axis, pooling and batch
norm of running statistics use the older descriptor interface, channels-first.

Steps before a convolution's activation are folded into its weights and bias. Tensors are channels-first as in
ONNX; for channels-last engines, the copies are part of the kernel and of its cost.
"""

from collage.backends.base import BackendStyle, BuildContext, PluginKernel
from collage.backends.nvidia.chain import ChainRule
from collage.backends.nvidia.cudnn.attention import AttentionRule, describe_attention
from collage.backends.nvidia.cudnn.convolution import convolution_refusal, read_convolution
from collage.backends.nvidia.cudnn.graph_builder import CudnnGraphBuilder
from collage.backends.nvidia.cudnn.norm import (
    CHANNELS,
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
from collage.graph.index_set import IndexSet, index_set, indices
from collage.rules.base_rules import Singles
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Union
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

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node)

    def rule(self, function: Function) -> PartitionRule:
        supported = self.supported_nodes(function)
        convolutions = index_set(n.index for n in function.graph.nodes if n.op == "Conv")
        chains = ChainRule.of(function, supported & convolutions, convolution_refusal, self.reduced)
        spelled = (AttentionRule(function), RmsNormRule(function))
        return Union((chains, Singles(supported), *spelled))

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        exact, rounds = self.read_variant(variant)
        register_with_plugin("cudnn", CUDNN)
        register_with_plugin("cudart", CUDART)
        root = nodes.bit_length() - 1
        ops = {function.graph.nodes[index].op for index in indices(nodes)}
        if nodes.bit_count() == 1 and not ops & {"Conv", *ROWS, *CHANNELS}:
            if variant:
                raise BackendError("cuDNN has one algorithm for this")
            blob = pack(*single_operation(function, root))
            return PluginKernel(self.kind, blob, libraries=frozenset({"cudnn"}))
        rank = VARIANTS[exact]
        region = describe(function, nodes, rank, rounds=rounds)
        header = region.header(dtype_of(function, next(iter(indices(nodes)))), rounds=rounds)
        compilers = [name for name in COMPILERS if not library_reason(name)]
        header["libraries"] = compilers
        blob = pack(header, region.constants)
        return PluginKernel(self.kind, blob, libraries=frozenset({"cudnn", *compilers}))


def describe(
    function: Function, nodes: IndexSet, rank: int, *, rounds: bool = False
) -> CudnnGraphBuilder:
    """Describe a region of the graph interface.

    Args:
        function: function of the region.
        nodes: nodes of the region.
        rank: rank of the heuristic's proposal.
        rounds: whether float32 products are computed in TF32.

    Raises:
        BackendError: cuDNN has no graph for the region.
    """
    ops = {function.graph.nodes[index].op for index in indices(nodes)}
    if "Conv" in ops:
        return read_convolution(function, nodes, rank, rounds=rounds)
    if rounds:
        raise BackendError("cuDNN's graphs without a convolution have nothing in TF32")
    if "Softmax" in ops:
        return describe_attention(function, nodes, rank)
    if nodes.bit_count() == 1:
        if reason := refusal(function, nodes.bit_length() - 1):
            raise BackendError(reason)
        return describe_norm(function, function.graph.nodes[nodes.bit_length() - 1], rank)
    return describe_rms_norm(function, nodes, rank)

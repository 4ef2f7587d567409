"""cuDNN: convolutions with bias, residual and ReLU in one call; softmax over the last axis; pooling.

The plug-in calls cuDNN's descriptor interface, which fuses y = relu(x * w + bias + residual). Its heuristic
orders the algorithms, and the first three that fit are variants. What comes before the residual is
folded into weights and bias here. Tensors are channels-first as in ONNX; cuDNN converts where its kernel
wants channels-last. float32 is computed in float32: TF32 is not used.

Norms, attention and other epilogues exist in cuDNN's graph interface only, which the plug-in does not call.
"""

from collage.backends.base import BackendStyle, PluginKernel
from collage.backends.cudnn.attention import AttentionRule
from collage.backends.cudnn.convolution import convolution_refusal, read_convolution
from collage.backends.cudnn.operations import refusal, single_operation
from collage.backends.nvidia.chain import ChainRule, Chains
from collage.backends.nvidia.libraries import CUDART, CUDNN
from collage.backends.nvidia.toolchain import CudaBackend, tell_plugin
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, index_set
from collage.rules.base import Singles
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Union
from collage.runtime.blob import pack

VARIANTS = {"": 0, "heuristic-2": 1, "heuristic-3": 2}
"""Rank of the algorithm among those that the heuristic proposes."""


class CudnnBackend(CudaBackend):
    """Convolutions with an epilogue, softmax and pooling (style LIBRARY)."""

    name = "cudnn"
    style = BackendStyle.LIBRARY
    needs = (CUDNN, CUDART)
    kind = "cudnn"
    variants = tuple(VARIANTS)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node)

    def rule(self, function: Function) -> PartitionRule:
        count = len(function.graph)
        supported = index_set(i for i in range(count) if refusal(function, i) is None)
        convolutions = index_set(n.index for n in function.graph.nodes if n.op == "Conv")
        chains = ChainRule(
            Chains(function),
            supported & convolutions,
            lambda chain: convolution_refusal(function, chain),
        )
        return Union((chains, Singles(supported), AttentionRule(function)))

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        if variant not in VARIANTS:
            raise BackendError(f"cudnn has no variant {variant!r}")
        tell_plugin("cudnn", CUDNN)
        tell_plugin("cudart", CUDART)
        root = nodes.bit_length() - 1
        if nodes.bit_count() == 1 and function.graph.nodes[root].op != "Conv":
            if variant:
                raise BackendError("cuDNN has one algorithm for this")
            return PluginKernel(self.kind, pack(single_operation(function, root), ()))
        header, constants = read_convolution(function, nodes)
        return PluginKernel(self.kind, pack({**header, "rank": VARIANTS[variant]}, constants))

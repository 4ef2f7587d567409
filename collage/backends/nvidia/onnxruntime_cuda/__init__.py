"""ONNX Runtime's CUDA execution provider: regions as ONNX models, device tensors in and out.

The variants are for convolutions: algorithms found by trying all, or by cuDNN's heuristic, or layers in
channels-last order, which tensor cores want. Other regions are the same in all of them, and are offered
once. float32 is computed in float32 but for the reduced variants, whose products may be in TF32.
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, PluginKernel
from collage.backends.cpu.onnxruntime import ConvolutionVariants
from collage.backends.nvidia.graph import refusal
from collage.backends.nvidia.libraries import CUBLASLT, CUDART, CUDNN
from collage.backends.nvidia.providers import provider_availability, region_model, session_kernel
from collage.backends.nvidia.toolchain import TF32, CudaBackend, tell_plugin, with_tf32
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet, index_set
from collage.rules.rule import PartitionRule

VARIANTS = {
    "": {"cudnn_conv_algo_search": "EXHAUSTIVE"},
    "heuristic": {"cudnn_conv_algo_search": "HEURISTIC"},
    "channels-last": {"cudnn_conv_algo_search": "EXHAUSTIVE", "prefer_nhwc": "1"},
}
COMMON = {"use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"}
DTYPES = frozenset({"float32", "float16", "bfloat16", "float64", "int32", "int64", "bool", "uint8"})


class OnnxRuntimeCudaBackend(CudaBackend):
    """Regions in ONNX Runtime sessions on the GPU (style GRAPH)."""

    name = "onnxruntime-cuda"
    style = BackendStyle.GRAPH
    needs = (CUDART, CUBLASLT, CUDNN)
    kind = "onnxruntime-cuda"
    variants = tuple(VARIANTS)
    reduced = with_tf32(("", "channels-last"))
    captures = False

    def further(self) -> Sequence[Availability]:
        return (provider_availability(self.kind),)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node, "ONNX Runtime", DTYPES, frozenset({"NonZero", "Range"}))

    def rule(self, function: Function) -> PartitionRule:
        count = range(len(function.graph))
        supported = index_set(i for i in count if self.unsupported(function, i) is None)
        return ConvolutionVariants.of(function.graph, supported, TF32)

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        exact, rounds = self.read_variant(variant)
        for name, need in (("cudart", CUDART), ("cublaslt", CUBLASLT), ("cudnn", CUDNN)):
            tell_plugin(name, need)
        options = provider_options(exact, rounds=rounds)
        return session_kernel(self.kind, function, nodes, region_model(function, nodes), options)


def provider_options(variant: str = "", *, rounds: bool = False) -> dict[str, str]:
    """Return the provider's options for a variant in full precision, or the same with TF32."""
    return {**COMMON, **VARIANTS[variant], **({"use_tf32": "1"} if rounds else {})}

"""ONNX Runtime's CUDA execution provider: regions as ONNX models, device tensors in and out.

The variants differ in convolutions: an exhaustive search for algorithms, cuDNN's heuristic, or channels-last
layout for tensor cores. Regions without a convolution are candidates once. float32 is computed in float32,
except for products in the reduced variants (TF32).
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, BuildContext, PluginKernel
from collage.backends.common.onnxruntime import ConvolutionVariants
from collage.backends.nvidia.graph import refusal
from collage.backends.nvidia.libraries import CUBLASLT, CUDART, CUDNN
from collage.backends.nvidia.providers import provider_availability, region_model, session_kernel
from collage.backends.nvidia.toolchain import TF32, CudaBackend, register_with_plugin, with_tf32
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
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
    graph_capturable = False

    def runtime_requirements(self) -> Sequence[Availability]:
        return (provider_availability(self.kind),)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(
            function,
            node,
            "ONNX Runtime",
            dtypes=DTYPES,
            extra_operators=frozenset({"NonZero", "Range"}),
        )

    def rule(self, function: Function) -> PartitionRule:
        return ConvolutionVariants.of(function.graph, self.supported_nodes(function), TF32)

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        exact, rounds = self.read_variant(variant)
        for name, need in (("cudart", CUDART), ("cublaslt", CUBLASLT), ("cudnn", CUDNN)):
            register_with_plugin(name, need)
        options = provider_options(exact, rounds=rounds)
        return session_kernel(
            self.kind, function, nodes, region_model(function, nodes), options=options
        )


def provider_options(variant: str = "", *, rounds: bool = False) -> dict[str, str]:
    """Return the provider's options for a variant, in full precision or (`rounds`) with TF32."""
    return {**COMMON, **VARIANTS[variant], **({"use_tf32": "1"} if rounds else {})}

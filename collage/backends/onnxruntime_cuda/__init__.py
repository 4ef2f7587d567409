"""ONNX Runtime's CUDA execution provider: regions as ONNX models, device tensors in and out.

An operator without a CUDA kernel would run on the CPU inside the session, with a copy each way that
nobody sees; so such operators are refused, and the search decides where they go. The variants differ in
how the provider picks convolution algorithms: by trying them all, or by cuDNN's heuristic.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from collage.backends.base import Availability, BackendStyle, PluginKernel
from collage.backends.nvidia.graph import refusal
from collage.backends.nvidia.libraries import CUBLASLT, CUDART, CUDNN
from collage.backends.nvidia.toolchain import CudaBackend
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.runtime.blob import Header, pack

VARIANTS = {"": "EXHAUSTIVE", "heuristic": "HEURISTIC"}
DTYPES = frozenset({"float32", "float16", "bfloat16", "float64", "int32", "int64", "bool", "uint8"})


def provider_availability(name: str) -> Availability:
    """Tell whether the installed ONNX Runtime has the execution provider `name` ("cuda")."""
    spec = find_spec("onnxruntime")
    folders = (
        [Path(one) / "capi" for one in (spec.submodule_search_locations or [])] if spec else []
    )
    file = f"libonnxruntime_providers_{name}.so"
    if any((folder / file).is_file() for folder in folders):
        return Availability("", {})
    here = "onnxruntime is installed without it" if folders else "onnxruntime is not installed"
    return Availability(f"no {file}: {here}: pip install onnxruntime-gpu")


class OnnxRuntimeCudaBackend(CudaBackend):
    """Regions in ONNX Runtime sessions on the GPU (style GRAPH)."""

    name = "onnxruntime-cuda"
    style = BackendStyle.GRAPH
    needs = (CUDART, CUBLASLT, CUDNN)
    kind = "onnxruntime-cuda"
    variants = tuple(VARIANTS)

    def further(self) -> Sequence[Availability]:
        return (provider_availability("cuda"),)

    def unsupported(self, function: Function, node: int) -> str | None:
        return refusal(function, node, "ONNX Runtime", DTYPES, frozenset({"NonZero", "Range"}))

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        if variant not in VARIANTS:
            raise BackendError(f"onnxruntime-cuda has no variant {variant!r}")
        options = ["cudnn_conv_algo_search", VARIANTS[variant], "use_tf32", "0"]
        return PluginKernel(self.kind, region_blob(function, nodes, {"provider_options": options}))


def region_blob(function: Function, nodes: IndexSet, header: Header) -> bytes:
    """Return a blob with the region's ONNX bytes."""
    from collage.frontend.region import region_onnx

    model = region_onnx(function, nodes).SerializeToString()
    return pack(header, [np.frombuffer(model, np.uint8)])

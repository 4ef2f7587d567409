"""TensorRT through ONNX Runtime's execution provider: regions as ONNX models, engines in the store.

Building an engine takes seconds to minutes: TensorRT times its own kernels. So it is built once, where the
kernel is compiled (`tensorrt.engine`), and travels in the kernel: neither a measurement, nor another plan,
nor a machine that serves builds it again. A 16-bit precision is allowed to TensorRT only where the region
itself has values of that type, so nothing is rounded that the model does not round; the reduced variant
may round float32 to TF32.
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, PluginKernel
from collage.backends.nvidia.graph import refusal
from collage.backends.nvidia.libraries import CUDART, TENSORRT, driver_reason
from collage.backends.nvidia.product import attributes
from collage.backends.nvidia.providers import (
    floats_of,
    provider_availability,
    region_model,
    session_kernel,
)
from collage.backends.nvidia.tensorrt.engine import ENGINES, kept_engine
from collage.backends.nvidia.toolchain import CudaBackend, tell_plugin, with_tf32
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.options import Options

DTYPES = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "bool"})
ALLOWED = {"float16": "trt_fp16_enable", "bfloat16": "trt_bf16_enable"}
"""Options that let TensorRT compute in a type."""
MOST_SPATIAL = 3


class TensorRtBackend(CudaBackend):
    """Regions as TensorRT engines (style GRAPH)."""

    name = "tensorrt"
    style = BackendStyle.GRAPH
    needs = (TENSORRT, CUDART)
    kind = "tensorrt"
    reduced = with_tf32(("",))
    captures = False

    def further(self) -> Sequence[Availability]:
        return (provider_availability(self.kind),)

    def unsupported(self, function: Function, node: int) -> str | None:
        if reason := refusal(function, node, "TensorRT", DTYPES, frozenset()):
            return reason
        found = function.graph.nodes[node]
        if found.op in ("Conv", "ConvTranspose"):
            rank = len(function.graph.types[found.inputs[0]].shape)
            if rank - 2 not in (2, MOST_SPATIAL):
                return f"{found.op} over {rank - 2} dimensions: TensorRT takes 2 or 3"
        if found.op == "MaxPool" and len([name for name in found.outputs if name]) > 1:
            return "MaxPool that returns indices"
        if found.op == "BatchNormalization" and attributes(function, node).get("training_mode", 0):
            return "BatchNormalization in training mode"
        return None

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> PluginKernel:
        _, rounds = self.read_variant(variant)
        tell_plugin("cudart", CUDART)
        tell_plugin("nvinfer", TENSORRT)
        floats = floats_of(function.graph, nodes)
        options = {option: "1" for dtype, option in ALLOWED.items() if dtype in floats}

        def kernel(model: bytes, more: dict[str, str], *, later: bool = False) -> PluginKernel:
            every = options | more
            exact = {"full_precision": 1} if later else {}
            return session_kernel(self.kind, function, nodes, model, every, exact)

        model = region_model(function, nodes)
        if reason := driver_reason():  # nothing can be built here: the first call on a GPU does it
            if rounds:
                raise BackendError(f"TensorRT builds for TF32 only where there is a GPU: {reason}")
            return kernel(model, {}, later=True)
        folder = (self.cache or Options().store_dir) / ENGINES
        engine = kept_engine(lambda more: kernel(model, more), self.identity, folder, rounds=rounds)
        return kernel(engine, {})

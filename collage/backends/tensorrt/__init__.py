"""TensorRT through ONNX Runtime's execution provider: regions as ONNX models, engines in the store.

Building an engine takes seconds to minutes: TensorRT times its own kernels. The precision is the
model's own (strongly typed), so nothing is rounded that the model does not round.
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, PluginKernel
from collage.backends.nvidia.graph import refusal
from collage.backends.nvidia.libraries import CUDART, TENSORRT
from collage.backends.nvidia.product import attributes
from collage.backends.nvidia.toolchain import CudaBackend
from collage.backends.onnxruntime_cuda import provider_availability, region_blob
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet

DTYPES = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "bool"})
MOST_SPATIAL = 3


class TensorRtBackend(CudaBackend):
    """Regions as TensorRT engines (style GRAPH)."""

    name = "tensorrt"
    style = BackendStyle.GRAPH
    needs = (TENSORRT, CUDART)
    kind = "onnxruntime-tensorrt"

    def further(self) -> Sequence[Availability]:
        return (provider_availability("tensorrt"),)

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
        if variant not in self.variants:
            raise BackendError(f"tensorrt has no variant {variant!r}")
        return PluginKernel(self.kind, region_blob(function, nodes, {"provider_options": []}))

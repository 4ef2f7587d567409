"""TensorRT through ONNX Runtime's execution provider: regions as ONNX models, engines in the store.

Building an engine takes seconds to minutes, since TensorRT times its own kernels. An engine is built once,
at compilation of the kernel (`tensorrt.engine`), and is part of the kernel: measurements, other plans and
serving machines reuse it. A 16-bit precision is enabled only in regions with values of that type, so TensorRT
rounds only where the model does. The reduced variant allows TF32 for float32.
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, BuildContext, PluginKernel
from collage.backends.nvidia.graph import refusal
from collage.backends.nvidia.libraries import CUDART, TENSORRT, driver_reason
from collage.backends.nvidia.providers import (
    floats_of,
    provider_availability,
    region_model,
    session_kernel,
)
from collage.backends.nvidia.tensorrt.engine import ENGINES, kept_engine
from collage.backends.nvidia.toolchain import CudaBackend, register_with_plugin, with_tf32
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.index_set import IndexSet, index_set
from collage.options import Options
from collage.rules.parallel_products import parallel_products
from collage.rules.regions import Regions
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Primitive, Union

DTYPES = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "bool"})
ALLOWED = {"float16": "trt_fp16_enable", "bfloat16": "trt_bf16_enable"}
"""The provider's option that enables each dtype."""
MOST_SPATIAL = 3
PRODUCTS = ("Conv", "MatMul", "Gemm")


class TensorRtBackend(CudaBackend):
    """Regions as TensorRT engines (style GRAPH)."""

    name = "tensorrt"
    style = BackendStyle.GRAPH
    needs = (TENSORRT, CUDART)
    kind = "tensorrt"
    reduced = with_tf32(("",))
    graph_capturable = False

    def runtime_requirements(self) -> Sequence[Availability]:
        return (provider_availability(self.kind),)

    def unsupported(self, function: Function, node: int) -> str | None:
        if reason := refusal(function, node, "TensorRT", dtypes=DTYPES):
            return reason
        graph_node = function.graph.nodes[node]
        if graph_node.op in ("Conv", "ConvTranspose"):
            rank = len(function.graph.types[graph_node.inputs[0]].shape)
            if rank - 2 not in (2, MOST_SPATIAL):
                return f"{graph_node.op} over {rank - 2} dimensions: TensorRT takes 2 or 3"
        if graph_node.op == "MaxPool" and len([name for name in graph_node.outputs if name]) > 1:
            return "MaxPool that returns indices"
        if graph_node.op == "BatchNormalization" and node_attributes(function, node).integer(
            "training_mode", 0
        ):
            return "BatchNormalization in training mode"
        return None

    def rule(self, function: Function) -> PartitionRule:
        """Return the regions, and parallel products: TensorRT merges layers that read one value."""
        supported = self.supported_nodes(function)
        products = index_set(n.index for n in function.graph.nodes if n.op in PRODUCTS)
        parallel = parallel_products(products & supported, supported)
        return Primitive(Union((Regions(supported), parallel)))

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        _, rounds = self.read_variant(variant)
        register_with_plugin("cudart", CUDART)
        register_with_plugin("nvinfer", TENSORRT)
        floats = floats_of(function.graph, nodes)
        options = {option: "1" for dtype, option in ALLOWED.items() if dtype in floats}

        def kernel(
            model: bytes, extra_options: dict[str, str], *, later: bool = False
        ) -> PluginKernel:
            provider_options = options | extra_options
            exact = {"full_precision": 1} if later else {}
            return session_kernel(
                self.kind, function, nodes, model, options=provider_options, header_entries=exact
            )

        model = region_model(function, nodes)
        if reason := driver_reason():  # no GPU: the engine is built by the first call on a GPU
            if rounds:
                raise BackendError(f"TensorRT builds for TF32 only where there is a GPU: {reason}")
            return kernel(model, {}, later=True)
        folder = (context.cache_dir or Options().store_dir) / ENGINES
        engine = kept_engine(
            lambda extra_options: kernel(model, extra_options), self.identity, folder, rounds=rounds
        )
        return kernel(engine, {})

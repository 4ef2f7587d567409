"""TVM's own CUDA kernels: a region becomes fused TIR functions with dlight's schedules.

Rule-based schedules take milliseconds. The variants are the rules in dlight's own order, and the fallback
rule alone, suitable for work bound by memory traffic.
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, BuildContext, TirKernel
from collage.backends.common.tvm.availability import tvm_availability
from collage.backends.nvidia.architecture import architecture_availability
from collage.backends.nvidia.compiler import nvcc_availability
from collage.backends.nvidia.libraries import CUDART
from collage.backends.nvidia.toolchain import CudaBackend
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_constants, region_relax
from collage.graph.index_set import IndexSet
from collage.runtime.target import Target

CUDA_SCHEDULE_REVISION = "1"
VARIANTS = ("", "fallback")
DTYPES = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8", "int8"})


class TvmCudaBackend(CudaBackend):
    """Fused native kernels on the GPU (style NATIVE)."""

    name = "tvm-cuda"
    style = BackendStyle.NATIVE
    needs = (CUDART,)
    variants = VARIANTS

    def compilers(self) -> Sequence[Availability]:
        tvm_package = tvm_availability()
        libraries = {**tvm_package.libraries, "schedule": CUDA_SCHEDULE_REVISION}
        return (Availability(tvm_package.reason, libraries), nvcc_availability(),
                architecture_availability(), code_generator_availability())  # fmt: skip

    def unsupported(self, function: Function, node: int) -> str | None:
        graph_node = function.graph.nodes[node]
        for value in filter(None, (*graph_node.inputs, *graph_node.outputs)):
            if value not in function.graph.types:
                return f"the shape of {value!r} depends on data"
            if (dtype := function.graph.types[value].dtype) not in DTYPES:
                return f"{value!r} is {dtype}"
        if function.relax_nodes[node] is None:
            return f"TVM has no {graph_node.op} with these operands"
        if graph_node.op == "LayerNormalization":
            dtype = function.graph.types[graph_node.inputs[0]].dtype
            return "TVM's layer normalisation has no bfloat16" if dtype == "bfloat16" else None
        return None

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> TirKernel:
        from collage.backends.common.tvm.lower import FUSED_SYMBOL, lower
        from collage.backends.common.tvm.tuned_schedules import (
            TUNED_PREFIX,
            apply_trace,
            read_trace,
        )
        from collage.backends.nvidia.tvm_cuda.schedule import schedule

        if variant not in VARIANTS and not variant.startswith(TUNED_PREFIX):
            raise BackendError(f"tvm-cuda has no variant {variant!r}")
        lowered = lower(region_relax(function, nodes))
        weights = tuple(function.weights[name] for name in region_constants(function, nodes))
        if variant.startswith(TUNED_PREFIX):
            module = apply_trace(
                lowered.function, read_trace(context.tuned_schedules_dir, variant), Target.CUDA
            )
        else:
            module = schedule(lowered.function, variant)
        return TirKernel(module, FUSED_SYMBOL, (*weights, *lowered.constants), self.device)


def code_generator_availability() -> Availability:
    """Tell whether this TVM has a CUDA code generator: its wheel has one, a local build may not."""
    import tvm  # noqa: F401 - registers its code generators
    import tvm_ffi

    generator = tvm_ffi.get_global_func("target.build.cuda", allow_missing=True)
    return Availability("" if generator else "this TVM was built without its CUDA code generator")

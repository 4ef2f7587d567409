"""TVM's own CUDA kernels: a region becomes fused TIR functions with dlight's schedules.

Rule-based schedules take milliseconds. Several fit a kernel; each is a variant: the rules in dlight's
own order, or the fallback rule alone, which suits what is bound by memory traffic.
"""

from collections.abc import Sequence

from collage.backends.base import Availability, BackendStyle, TirKernel
from collage.backends.cpu.tvm import TvmBackend
from collage.backends.nvidia.architecture import architecture_availability
from collage.backends.nvidia.compiler import nvcc_availability
from collage.backends.nvidia.libraries import CUDART
from collage.backends.nvidia.toolchain import CudaBackend
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet

SCHEDULE_REVISION = "1"
VARIANTS = ("", "fallback")
DTYPES = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "bool", "uint8", "int8"})


class TvmCudaBackend(CudaBackend):
    """Fused native kernels on the GPU (style NATIVE)."""

    name = "tvm-cuda"
    style = BackendStyle.NATIVE
    needs = (CUDART,)
    variants = VARIANTS

    def compilers(self) -> Sequence[Availability]:
        found = TvmBackend().availability()
        return (Availability(found.reason, {**found.libraries, "schedule": SCHEDULE_REVISION}),
                nvcc_availability(), architecture_availability(), tvm_availability())  # fmt: skip

    def unsupported(self, function: Function, node: int) -> str | None:
        found = function.graph.nodes[node]
        for value in filter(None, (*found.inputs, *found.outputs)):
            if value not in function.graph.types:
                return f"the shape of {value!r} depends on data"
            if (dtype := function.graph.types[value].dtype) not in DTYPES:
                return f"{value!r} is {dtype}"
        if function.relax_nodes[node] is None:
            return f"TVM has no {found.op} with these operands"
        if found.op == "LayerNormalization":
            dtype = function.graph.types[found.inputs[0]].dtype
            return "TVM's layer normalisation has no bfloat16" if dtype == "bfloat16" else None
        return None

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> TirKernel:
        from collage.backends.cpu.tvm.lower import SYMBOL, lower
        from collage.backends.cpu.tvm.tuned import PREFIX, apply_trace, read_recipe
        from collage.backends.nvidia.tvm_cuda.schedule import schedule
        from collage.frontend.region import region_constants, region_relax

        if variant not in VARIANTS and not variant.startswith(PREFIX):
            raise BackendError(f"tvm-cuda has no variant {variant!r}")
        lowered = lower(region_relax(function, nodes), for_cpu=False)
        weights = tuple(function.weights[name] for name in region_constants(function, nodes))
        if variant.startswith(PREFIX):
            module = apply_trace(lowered.function, read_recipe(self.recipes, variant), self.device)
        else:
            module = schedule(lowered.function, variant)
        return TirKernel(module, SYMBOL, (*weights, *lowered.constants), self.device)


def tvm_availability() -> Availability:
    """Tell whether TVM can generate CUDA code (its wheel can; a build of one's own may not)."""
    import tvm  # noqa: F401 - registers its code generators
    import tvm_ffi

    found = tvm_ffi.get_global_func("target.build.cuda", allow_missing=True)
    return Availability("" if found else "this TVM was built without its CUDA code generator")

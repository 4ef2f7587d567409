"""From a Relax module of kernel calls to an executable for a GPU, with planned memory and CUDA graphs.

The kernels are fixed: TVM's passes lay out memory, capture graphs and generate the calls; none of them
selects a kernel or a schedule.
"""

from functools import cache

import tvm
from tvm import relax, tirx
from tvm.relax import transform

from collage.backends.common.tvm.target import host_target
from collage.backends.nvidia.tvm_cuda.schedule import cuda_target, use_nvcc
from collage.runtime.plugin import load_cuda_runtime


def compile_for_gpu(module: tvm.IRModule, threads: int, capture: bool) -> tvm.runtime.Executable:
    """Compile the host part and TVM's own kernels; `capture` enables CUDA graphs.

    Raises:
        BackendError: the CUDA runtime is missing, or nvcc with kernels of TVM in the module.
    """
    if any(isinstance(function, tirx.PrimFunc) for function in module.functions.values()):
        use_nvcc()
    load_cuda_runtime()
    module.update_global_info("vdevice", list(devices(threads)))
    target = tvm.target.Target(cuda_target(), host_target(threads))
    options = {"relax.backend.use_cuda_graph": capture}
    with target, tvm.transform.PassContext(opt_level=3, config=options):
        lowered = tvm.transform.Sequential(_passes())(module)
        return tvm.compile(lowered, target=target, relax_pipeline=tvm.transform.Sequential([]))


@cache
def devices(threads: int) -> tuple[relax.VDevice, relax.VDevice]:
    """Return GPU and host; cached, since types and module must refer to the same objects."""
    gpu = relax.VDevice(cuda_target(), 0, "global")
    return gpu, relax.VDevice(host_target(threads), 0, "global")


def _passes() -> list[tvm.transform.Pass]:
    """Return TVM's passes, without those that select kernels or schedules."""
    return [
        transform.LegalizeOps(),
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        transform.RewriteCUDAGraph(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]

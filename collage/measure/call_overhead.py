"""Dispatch overhead: the time that the executable's virtual machine adds to every kernel call.

Two chains of empty kernels run in a Relax VM. The difference of their times over the difference of their
lengths is the cost of one call, without the cost of entering the virtual machine.

On a GPU a call is also a launch. In a CUDA graph, launches follow each other on the device. Launched one
by one, a kernel shorter than its launch waits for the host. Both are measured, by the same chains with the
smallest possible work. The first is the dispatch overhead of a plan with graph-capturable kernels only; the
second is the lower bound of a call in any other plan.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

LENGTHS = (8, 72)
CALLS = 200
SIZE = 8


@dataclass(frozen=True)
class DispatchOverhead:
    """Overhead of a kernel call inside an executable.

    Attributes:
        call_s: dispatch overhead of one call, in seconds.
        launch_s: lower bound of one call launched from the host, in seconds; 0 on a CPU.
    """

    call_s: float
    launch_s: float = 0.0


def cpu_dispatch_overhead_s() -> float:
    """Measure the dispatch overhead of one call on the CPU. Takes about half a second."""
    import tvm
    from tvm import relax

    from collage.backends.common.tvm.target import host_target

    def seconds(length: int) -> float:
        module = _chain("testing.nop", relax.TensorType((1, SIZE), "float32"), length)
        # The executable has no code of its own; to link it, as its `jit` does, would need a compiler.
        machine = relax.VirtualMachine(tvm.compile(module, target=host_target(1)).mod, tvm.cpu())
        argument = tvm.runtime.empty((1, SIZE), "float32")
        return _median_s(lambda: machine["main"](argument))

    return _link_s(seconds)


def gpu_dispatch_overhead(synchronize: Callable[[], None]) -> DispatchOverhead:
    """Measure both kinds of overhead on the GPU.

    Args:
        synchronize: function waiting for the device.
    """

    def link_s(graphs: bool) -> float:
        return _link_s(lambda length: _gpu_chain_s(length, graphs, synchronize))

    return DispatchOverhead(link_s(True), link_s(False))


def _gpu_chain_s(length: int, graphs: bool, synchronize: Callable[[], None]) -> float:
    import tvm
    from tvm import relax

    from collage.backends.nvidia.tvm_cuda.executable import compile_for_gpu, devices

    module = _chain(
        "collage.touch", relax.TensorType((1, SIZE), "float32", vdevice=devices(1)[0]), length
    )
    machine = relax.VirtualMachine(compile_for_gpu(module, 1, graphs).mod, [tvm.cuda(), tvm.cpu()])
    argument = tvm.runtime.empty((1, SIZE), "float32", tvm.cuda())

    def run() -> None:
        machine["main"](argument)
        synchronize()

    return _median_s(run)


def _chain(kernel: str, tensor: Any, length: int) -> "tvm.IRModule":
    """Return a function with a chain of `length` calls, each on the result of the call before."""
    from tvm import relax

    builder = relax.BlockBuilder()
    param = relax.Var("x", tensor)
    with builder.function("main", [param]):
        with builder.dataflow():
            value = param
            for _ in range(length):
                call = relax.op.call_dps_packed(kernel, relax.Tuple([value]), [tensor])
                value = builder.emit(call)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def _link_s(chain_s: Callable[[int], float]) -> float:
    short, long = map(chain_s, LENGTHS)
    return max(0.0, long - short) / (LENGTHS[1] - LENGTHS[0])


def _median_s(run: Callable[[], object]) -> float:
    samples = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        run()
        samples.append((time.perf_counter_ns() - start) * 1e-9)
    return statistics.median(samples)

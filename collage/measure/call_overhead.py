"""What the executable adds to every kernel call: the virtual machine's dispatch and allocation.

Two chains of kernels that do nothing run in a Relax VM; the difference of their times over the
difference of their lengths is the cost of one link, without the cost of entering the machine.

On a GPU a link is also a launch. Captured in a CUDA graph, launches follow each other on the device; launched
one by one, a kernel that is shorter than its launch waits for the host. Both are measured, by the same
chains with the least work that a device can be given. The first is what a border costs in a plan whose
kernels all may be captured. The second is the least that any call takes in a plan with one that may not.
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
class Boundary:
    """Seconds at the border of two kernels.

    Attributes:
        call_s: what a call adds to its kernel.
        launch_s: on a GPU, the least that a call takes where it is launched from the host.
    """

    call_s: float
    launch_s: float = 0.0


def vm_call_s() -> float:
    """Measure the seconds of one kernel call, without the kernel. Takes about half a second."""
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


def gpu_boundary(synchronize: Callable[[], None]) -> Boundary:
    """Measure both kinds of links on the GPU.

    Args:
        synchronize: waits for the device.
    """

    def link_s(graphs: bool) -> float:
        return _link_s(lambda length: _gpu_chain_s(length, graphs, synchronize))

    return Boundary(link_s(True), link_s(False))


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
    """A function that calls the kernel so often, each time on what the call before returned."""
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

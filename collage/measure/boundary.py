"""What the executable adds to every kernel call: the virtual machine's dispatch and allocation.

Two chains of kernels that do nothing run in a Relax VM; the difference of their times over the
difference of their lengths is the cost of one link, without the cost of entering the machine.
"""

import statistics
import time

LENGTHS = (8, 72)
CALLS = 200


def vm_call_s() -> float:
    """Measure the seconds of one kernel call, without the kernel. Takes about half a second."""
    short, long = (_chain_s(length) for length in LENGTHS)
    return max(0.0, long - short) / (LENGTHS[1] - LENGTHS[0])


def _chain_s(length: int) -> float:
    import tvm
    from tvm import relax

    from collage.backends.tvm.target import host_target

    builder = relax.BlockBuilder()
    param = relax.Var("x", relax.TensorType((1, 8), "float32"))
    with builder.function("main", [param]):
        with builder.dataflow():
            value = param
            for _ in range(length):
                call = relax.op.call_dps_packed("testing.nop", relax.Tuple([value]), [param.ty])
                value = builder.emit(call)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    # The executable has no code of its own; to link it, as its `jit` does, would need a compiler.
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target=host_target(1)).mod, tvm.cpu())
    run = machine["main"]
    argument = tvm.runtime.empty((1, 8), "float32")
    samples = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        run(argument)
        samples.append((time.perf_counter_ns() - start) * 1e-9)
    return statistics.median(samples)

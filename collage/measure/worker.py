"""A worker process: compiles and measures one candidate after another: `python -m collage.measure.worker`.

Frames (length, pickle) come on standard input and go to what was standard output; anything that a
library prints goes to standard error. The worker dies with its parent. It sets its own limit of
memory; the parent enforces the time limit by killing it.
"""

import ctypes
import fcntl
import os
import pickle
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from collage.backends.base import Backend, Kernel, PluginKernel
from collage.cost import Cost
from collage.errors import CollageError
from collage.frontend import Function, load_function
from collage.frontend.inputs import load_reference
from collage.frontend.region import region_values
from collage.measure.numerics import differs
from collage.measure.timing import ColdTimer
from collage.measure.work import Work

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to know before its first work."""

    functions: tuple[tuple[str, str, str], ...]
    """(name, simplified ONNX file, folder of reference values) of each function."""
    backends: tuple[str, ...]
    factory: str
    """`module:function` that makes the backends by name."""
    threads: int
    memory_bytes: int
    sweep_bytes: int
    lock_file: str


def send(stream: BinaryIO, value: object) -> None:
    """Write one frame."""
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> object:
    """Read one frame; raises EOFError when the other side is gone."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    data = stream.read(struct.unpack("<Q", head)[0])
    return pickle.loads(data)


class Bench:
    """Compiles, checks and times candidates inside the worker."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._functions: dict[str, Function] = {}
        self._references: dict[str, object] = {}
        module, _, name = setup.factory.partition(":")
        make = getattr(__import__(module, fromlist=[name]), name)
        self._backends: dict[str, Backend] = {b.name: b for b in make(setup.backends)}
        self._timer = ColdTimer(setup.sweep_bytes)
        for function, simplified, _ in setup.functions:
            self._functions[function] = load_function(Path(simplified), function)
        for function, _, folder in setup.functions:
            self._references[function] = load_reference(Path(folder))

    def measure(self, work: Work) -> Cost:
        """Return the cost of one candidate; whatever goes wrong is its reason."""
        began = time.monotonic()
        try:
            function = self._functions[work.function]
            backend = self._backends[work.backend]
            kernel = backend.compile(function, work.nodes, self._setup.threads, work.variant)
            call = make_callable(kernel, self._setup.threads)
            return self._run(function, work, call, began)
        except MemoryError:
            return Cost.invalid("out of memory")
        except CollageError as error:
            return Cost.invalid(str(error)[:500])
        except Exception as error:
            return Cost.invalid(f"{type(error).__name__}: {_last_line(error)}")

    def _run(
        self, function: Function, work: Work, call: Callable[..., object], began: float
    ) -> Cost:
        import tvm_ffi

        values = self._references[work.function]
        inputs, outputs = region_values(function, work.nodes)
        sources = [np.asarray(values[name]) for name in inputs]  # type: ignore[index]
        expected = [np.asarray(values[name]) for name in outputs]  # type: ignore[index]
        buffers = [aligned(value) for value in sources]
        results = [aligned(value) for value in expected]
        for result in results:
            result.fill(77)  # a kernel that writes nothing must not pass
        arguments = [tvm_ffi.from_dlpack(value) for value in (*buffers, *results)]
        call(*arguments)
        for name, reference, result in zip(outputs, expected, results, strict=True):
            if reason := differs(reference, result):
                return Cost.invalid(f"wrong numbers in {name}: {reason}")
        build_s = time.monotonic() - began

        def refresh() -> None:
            for buffer, source in zip(buffers, sources, strict=True):
                buffer[...] = source

        with open(self._setup.lock_file, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            cost = self._timer.measure(lambda: call(*arguments), refresh)
        return Cost(cost.seconds, cost.low, cost.high, cost.samples, "", round(build_s, 4))


def make_callable(kernel: Kernel, threads: int) -> Callable[..., object]:
    """Turn a kernel into something to call with inputs and outputs."""
    import tvm_ffi

    if isinstance(kernel, PluginKernel):
        create = tvm_ffi.get_global_func("collage.create_module")
        return create(kernel.kind, "kernel", kernel.blob)["kernel"]
    from collage.backends.tvm import build

    return build(kernel, threads)


def aligned(value: np.ndarray) -> np.ndarray:
    """Copy an array to memory that starts at a multiple of 64 bytes."""
    raw = np.empty(value.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = receive(sys.stdin.buffer)
    assert isinstance(setup, WorkerSetup)
    resource.setrlimit(resource.RLIMIT_DATA, (setup.memory_bytes, setup.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import tvm_ffi

    from collage.runtime.plugin import load_plugin

    load_plugin()
    tvm_ffi.get_global_func("collage.set_threads")(setup.threads)
    bench = Bench(setup)
    send(answers, "ready")
    while True:
        try:
            work = receive(sys.stdin.buffer)
        except EOFError:
            return
        assert isinstance(work, Work)
        send(answers, bench.measure(work))


if __name__ == "__main__":
    from collage.measure import worker  # so that pickled classes are those of the package

    worker.main()

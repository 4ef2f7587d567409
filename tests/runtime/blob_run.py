"""Runs blobs in a child process that may crash, and reports the outcome of each.

    python -m tests.runtime.blob_run MODULE FIRST

runs what MODULE's `cases()` yields from number FIRST on: it prints a case's name before it runs and its
outcome afterwards. `outcomes` runs such a child, and another one behind the case in which one ended.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.runtime.blob_seeds import Shape

GUARD = 1024
"""Guard elements on each side of an argument; a kernel must not change them."""
MARK = np.float32(12345.678)
MEMORY_BYTES = 3 << 30
CHILD_S = 300


@dataclass(frozen=True)
class Case:
    """A blob, and the shapes and dtype of the arguments it is run with.

    `runs` is False where a library or device is needed that is not here: the kernel is only made.
    """

    name: str
    kind: str
    blob: bytes
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    dtypes: dict[int, str] = field(default_factory=dict)
    """Dtypes of arguments other than float32, by number."""
    strided: frozenset[int] = frozenset()
    """Numbers of arguments passed with a stride of two elements."""
    runs: bool = True


@dataclass(frozen=True)
class Outcome:
    """`kind`: "ran", the name of a Python exception, or a signal's."""

    name: str
    kind: str
    message: str = ""


def guarded(shape: Shape, dtype: str, strided: bool, value: float) -> tuple[np.ndarray, np.ndarray]:
    """Return an array full of `value`, and its memory with a guard on each side."""
    size = int(np.prod(shape, dtype=np.int64)) * (2 if strided else 1)
    padded = np.full(size + 2 * GUARD, MARK).astype(dtype)
    inner = padded[GUARD : GUARD + size]
    inner[:] = value
    return (inner[::2] if strided else inner).reshape(shape), padded


def run(case: Case) -> str:
    """Create the kernel and call it twice; return its defect in words, or "". Its errors are raised."""
    import tvm_ffi

    module = tvm_ffi.get_global_func("collage.create_module")(case.kind, "kernel", case.blob)
    kernel = module.get_function("kernel")
    if not case.runs:
        return ""
    buffers = []
    for number, shape in enumerate((*case.inputs, *case.outputs)):
        dtype = case.dtypes.get(number, "float32")
        buffers.append(guarded(shape, dtype, number in case.strided, 0.5))
    for _ in range(2):
        kernel(*(tvm_ffi.from_dlpack(array) for array, _ in buffers))
    for number, (_, padded) in enumerate(buffers):
        mark = np.array(MARK).astype(padded.dtype)
        if (padded[:GUARD] != mark).any() or (padded[-GUARD:] != mark).any():
            return f"argument {number}: written outside"
        if number < len(case.inputs) and (padded[GUARD:-GUARD] != padded.dtype.type(0.5)).any():
            return f"argument {number}: an input was written"
    return ""


def main() -> None:
    from collage.runtime.plugin import load_plugin

    load_plugin()
    sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")
    if not sanitized:  # a sanitizer reserves all that there is
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for number, case in enumerate(importlib.import_module(sys.argv[1]).cases()):
        # OpenVINO opens a library in a way that sanitizers end the process for.
        if number < int(sys.argv[2]) or (sanitized and case.kind == "openvino"):
            continue
        print(json.dumps([case.name]), flush=True)
        try:
            wrong = run(case)
            outcome = Outcome(case.name, wrong or "ran")
        except Exception as error:
            outcome = Outcome(case.name, type(error).__name__, str(error))
        print(json.dumps([case.name, outcome.kind, outcome.message[:500]]), flush=True)


def outcomes(module: str) -> Iterator[Outcome]:
    """Run all cases of a module. An early end of the child is the outcome of the current case."""
    first = 0
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "tests.runtime.blob_run", module, str(first)],
            capture_output=True, text=True, timeout=CHILD_S, check=False,
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        finished = [Outcome(*line) for line in lines if len(line) == 3]
        yield from finished
        if done.returncode == 0:
            return
        began = [line[0] for line in lines if len(line) == 1]
        if len(began) == len(finished):
            raise RuntimeError(f"the child ended with {done.returncode}: {done.stderr[-2000:]}")
        code = done.returncode
        kind = signal.Signals(-code).name if code < 0 else f"exit {code}"
        yield Outcome(began[-1], kind, done.stderr[-2000:])
        first += len(began)


if __name__ == "__main__":
    main()

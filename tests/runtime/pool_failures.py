"""A process in which parallel loops fail, two callers want the pool at once, or threads cannot be made.

    python -m tests.runtime.pool_failures openmp|own

prints one JSON document: what became of each. "own" is the plug-in's own threads, which a forked process has
instead of OpenMP's.
"""

import json
import os
import resource
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T

from collage.runtime.plugin import load_plugin
from tests.runtime.blob_seeds import Seed, blocked, onednn, onnx, winograd

ROUNDS = 20
CALLS = 300
ROOM_BYTES = 24 << 20  # for stacks of two or three threads more
PAD = 13


@T.prim_func(s_tir=True)
def picky(number: T.Buffer((64,), "int32"), result: T.Buffer((64,), "int32")):  # type: ignore[valid-type]
    T.func_attr({"global_symbol": "picky", "tirx.noalias": True})
    for i in T.parallel(64):
        assert number[i] >= 0, "a number is negative"
        result[i] = number[i] + 1


class Kernel:
    """A kernel with its arguments."""

    def __init__(self, seed: Seed, threads: int) -> None:
        create = tvm_ffi.get_global_func("collage.create_module")
        blob = seed.with_header(threads=threads).blob
        self._run = create(seed.kind, "kernel", blob).get_function("kernel")
        random = np.random.default_rng(7)
        inputs = [random.standard_normal(shape).astype(np.float32) for shape in seed.inputs]
        self.outputs = [np.zeros(shape, np.float32) for shape in seed.outputs]
        self._tensors = [tvm_ffi.from_dlpack(array) for array in (*inputs, *self.outputs)]

    def __call__(self) -> list[np.ndarray]:
        for output in self.outputs:
            output.fill(0)
        self._run(*self._tensors)
        return [output.copy() for output in self.outputs]


def hungry() -> Seed:
    """Return a blocked kernel with a tebibyte of scratch memory for each task."""
    seed = blocked()
    steps = [list(step) for step in seed.header["steps"]]
    steps[1][PAD] = 2**31 - 1
    return replace(seed, header={**seed.header, "steps": steps})


def same(actual: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(
        np.array_equal(value, reference) for value, reference in zip(actual, expected, strict=True)
    )


def failing(threads: int) -> dict[str, Any]:
    """Run loops with throwing tasks, and a correct loop after each."""
    good, bad = Kernel(blocked(), threads), Kernel(hungry(), threads)
    right = good()
    errors, after = set(), []
    for _ in range(ROUNDS):
        try:
            bad()
        except RuntimeError as error:
            errors.add(str(error).split(" for ")[0])
        after.append(same(good(), right))
    return {"errors": sorted(errors), "right": all(after)}


def asserting(threads: int) -> dict[str, Any]:
    """Run a loop of TVM with an error in one task."""
    tvm_ffi.get_global_func("collage.set_threads")(threads)
    run = tvm.compile(tvm.IRModule({"picky": picky}), target="llvm")["picky"]
    number, result = np.zeros(64, np.int32), np.zeros(64, np.int32)
    tensors = [tvm_ffi.from_dlpack(tensor) for tensor in (number, result)]
    errors = set()
    for at in range(0, 64, 7):
        number[at] = -1
        try:
            run(*tensors)
        except Exception as error:
            errors.add(f"{type(error).__name__}: {'a number is negative' in str(error)}")
        number[at] = 0
    run(*tensors)
    return {"errors": sorted(errors), "right": bool((result == 1).all())}


def limited(threads: int) -> dict[str, Any]:
    """Ask for more threads than fit the memory."""
    good, right = Kernel(blocked(), threads), Kernel(blocked(), threads)()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
    tvm_ffi.get_global_func("collage.set_threads")(threads)
    before = len(os.listdir("/proc/self/task"))
    tvm_ffi.get_global_func("collage.wake_threads")()
    started = len(os.listdir("/proc/self/task")) - before
    return {"fewer": started < threads - 1, "right": same(good(), right)}


def together(threads: int, extra_seeds: tuple[Seed, ...]) -> dict[str, Any]:
    """Run kernels of several callers at once; compare with their results one by one."""
    wrong: list[str] = []

    def call(kernel: Kernel, right: list[np.ndarray]) -> None:
        wrong.extend("other numbers" for _ in range(CALLS) if not same(kernel(), right))

    kernels = [Kernel(seed, threads) for seed in (blocked(), winograd(), *extra_seeds) * 2]
    callers = [threading.Thread(target=call, args=(kernel, kernel())) for kernel in kernels]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return {"wrong": wrong}


def main() -> None:
    load_plugin()
    if sys.argv[1] == "own":
        tvm_ffi.get_global_func("collage.set_threads")(2)
        tvm_ffi.get_global_func("collage.wake_threads")()  # so that the child knows them lost
        if (child := os.fork()) != 0:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    # A forked process cannot use the libraries' threads, which its parent had.
    extra_seeds = (onednn(), onnx("onnxruntime")) if sys.argv[1] == "openmp" else ()
    document = {
        "failing": [failing(2), failing(4)],
        "asserting": asserting(4),
        "together": together(2, extra_seeds),
        "limited": limited(256),  # the last: there is no memory after it
    }
    print(json.dumps(document), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

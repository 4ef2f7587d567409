"""A process in which parallel loops fail, threads cannot be made, or two callers want the pool at once.

    python -m tests.runtime.pool_failures MODE THREADS

prints one JSON document; "own" in MODE is the plug-in's own threads, which a forked process has, instead of
OpenMP's.
"""

import json
import os
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T

from collage.runtime.plugin import load_plugin
from tests.runtime.blob_seeds import Seed, blocked, winograd

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
    """A kernel and arguments that it keeps."""

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
    """A blocked kernel whose tasks each ask for a tebibyte."""
    seed = blocked()
    steps = [list(step) for step in seed.header["steps"]]
    steps[1][PAD] = 2**31 - 1
    return replace(seed, header={**seed.header, "steps": steps})


def same(found: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, right, strict=True))


def failing(threads: int) -> dict[str, Any]:
    """Loops whose tasks throw, and one that is right after each."""
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
    """A loop of TVM's, one of whose tasks says what is wrong."""
    tvm_ffi.get_global_func("collage.set_threads")(threads)
    run = tvm.compile(tvm.IRModule({"picky": picky}), target="llvm")["picky"]
    number, result = np.zeros(64, np.int32), np.zeros(64, np.int32)
    tensors = [tvm_ffi.from_dlpack(one) for one in (number, result)]
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
    """More threads than there is memory for."""
    good, right = Kernel(blocked(), threads), Kernel(blocked(), threads)()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    tvm_ffi.get_global_func("collage.set_threads")(threads)
    before = len(os.listdir("/proc/self/task"))
    tvm_ffi.get_global_func("collage.wake_threads")()
    more = len(os.listdir("/proc/self/task")) - before
    return {"fewer": more < threads - 1, "right": same(good(), right)}


def together(threads: int) -> dict[str, Any]:
    """Kernels of two callers at once, and of one of them alone."""
    wrong: list[str] = []

    def call(kernel: Kernel, right: list[np.ndarray]) -> None:
        wrong.extend("other numbers" for _ in range(CALLS) if not same(kernel(), right))

    kernels = [Kernel(one, threads) for one in (blocked(), winograd()) * 2]
    callers = [threading.Thread(target=call, args=(one, one())) for one in kernels]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return {"wrong": wrong}


MODES: dict[str, Callable[[int], dict[str, Any]]] = {
    "failing": failing, "asserting": asserting, "limited": limited, "together": together,
}  # fmt: skip


def main() -> None:
    mode, _, own = sys.argv[1].partition("-")
    threads = int(sys.argv[2])
    load_plugin()
    if own:
        tvm_ffi.get_global_func("collage.set_threads")(2)
        tvm_ffi.get_global_func("collage.wake_threads")()  # so that the child knows them lost
        if (child := os.fork()) != 0:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    print(json.dumps(MODES[mode](threads)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""A process that runs one loop of TVM on so many threads, and prints which threads there were."""

import json
import os
import sys

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T

from collage.runtime.plugin import load_plugin

LENGTH = 64


@T.prim_func(s_tir=True)
def numbers(number: T.Buffer((64,), "int32"), thread: T.Buffer((64,), "int64")):  # type: ignore[valid-type]
    T.func_attr({"global_symbol": "numbers", "tirx.noalias": True})
    for i in T.parallel(64):
        number[i] = i
        thread[i] = T.call_extern("int64", "pthread_self")


def main() -> None:
    threads = int(sys.argv[1])
    load_plugin()
    tvm_ffi.get_global_func("collage.set_threads")(threads)
    run = tvm.compile(tvm.IRModule({"numbers": numbers}), target="llvm")["numbers"]

    def once() -> tuple[bool, int]:
        number, thread = np.zeros(LENGTH, np.int32), np.zeros(LENGTH, np.int64)
        run(tvm_ffi.from_dlpack(number), tvm_ffi.from_dlpack(thread))
        return bool((number == np.arange(LENGTH)).all()), len(set(thread.tolist()))

    before = count()
    tvm_ffi.get_global_func("collage.wake_threads")()
    woken = count()
    right, ran_on = once()
    document = {"woken": woken - before, "right": right, "ran_on": ran_on, "more": count() - woken}
    child = os.fork()
    if child == 0:
        os._exit(0 if once()[0] else 1)
    document["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(document))


def count() -> int:
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    main()

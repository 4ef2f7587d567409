"""Toolchains of a GPU with faults; the processes that measure import them."""

import numpy as np
import tvm
from tvm import tirx

from collage.backends.base import TirKernel
from collage.backends.tvm_cuda import TvmCudaBackend

FAR = 1 << 40
"""Elements between a tensor and where the kernel writes: no card has so much memory."""


class CrashingBackend(TvmCudaBackend):
    """Its kernels write to an address that is none."""

    name = "crashing"
    variants = ("",)

    def compile(self, function, nodes, threads, variant=""):
        kernel = super().compile(function, nodes, threads, variant)
        (broken,) = (strayed(one) for one in kernel.module.functions.values())
        return TirKernel(
            tvm.IRModule({kernel.symbol: broken}), kernel.symbol, kernel.constants, "cuda"
        )


class HungryBackend(TvmCudaBackend):
    """Takes the host's memory when it compiles."""

    name = "hungry"
    variants = ("",)

    def compile(self, function, nodes, threads, variant=""):
        eaten = []
        while True:
            eaten.append(np.ones(1 << 24))


def strayed(function):
    """Return the function with every store to its last parameter far away."""
    output = function.params[-1].name

    def store(node):
        if node.buffer.name == output:
            first, *others = node.indices
            return tirx.BufferStore(
                node.buffer, node.value, [first + tirx.const(FAR, "int64"), *others]
            )
        return None

    body = tirx.stmt_functor.ir_transform(function.body, None, store, ["tirx.BufferStore"])
    return function.with_body(body)

"""Toolchains of a GPU with faults; the processes that measure import them."""

import numpy as np
from tvm import te

from collage.backends.base import TirKernel
from collage.backends.tvm.lower import SYMBOL
from collage.backends.tvm_cuda import TvmCudaBackend
from collage.backends.tvm_cuda.schedule import schedule
from collage.frontend.region import region_values

FAR = 1 << 40
"""Elements between a tensor and where the kernel reads: no card has so much memory."""


class Relus(TvmCudaBackend):
    """Takes nothing else."""

    variants = ("",)

    def unsupported(self, function, node):
        return None if function.graph.nodes[node].op == "Relu" else "only Relu"


class CrashingBackend(Relus):
    """Its kernels read an address that is none."""

    name = "crashing"

    def compile(self, function, nodes, threads, variant=""):
        (name,), _ = region_values(function, nodes)
        read = te.placeholder(function.type_of(name).shape, "float32", "x")
        made = te.compute(read.shape, lambda first, *rest: read(first + np.int64(FAR), *rest))
        return TirKernel(schedule(te.create_prim_func([read, made])), SYMBOL, (), "cuda")


class HungryBackend(Relus):
    """Takes the host's memory when it compiles."""

    name = "hungry"

    def compile(self, function, nodes, threads, variant=""):
        eaten = []
        while True:
            eaten.append(np.ones(1 << 24))

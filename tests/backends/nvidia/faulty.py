"""GPU toolchains with faults, imported by measuring processes."""

import numpy as np
from tvm import te

from collage.backends.base import TirKernel
from collage.backends.common.tvm.lower import FUSED_SYMBOL
from collage.backends.nvidia.tvm_cuda import TvmCudaBackend
from collage.backends.nvidia.tvm_cuda.schedule import schedule
from collage.frontend.region import region_values

FAR = 1 << 40
"""Elements between a tensor and where the kernel reads: no card has so much memory."""


def reading_far(parameters):
    """A function with these parameters (shape, dtype); the last is read from far outside the first."""
    operands = [
        te.placeholder(*parameter, f"p{place}") for place, parameter in enumerate(parameters[:-1])
    ]
    first, *inner_extents = operands[0].shape
    at = (first + np.int64(FAR), *(np.int64(0) for _ in inner_extents))
    result = te.compute(parameters[-1][0], lambda *_: operands[0](*at))
    return te.create_prim_func([*operands, result])


class Relus(TvmCudaBackend):
    """Takes nothing else."""

    variants = ("",)

    def unsupported(self, function, node):
        return None if function.graph.nodes[node].op == "Relu" else "only Relu"


class CrashingBackend(Relus):
    """Its kernels read an invalid address."""

    name = "crashing"

    def compile(self, function, nodes, context, variant=""):
        (name,), (result,) = region_values(function, nodes)
        shapes = [(function.type_of(value).shape, "float32") for value in (name, result)]
        return TirKernel(schedule(reading_far(shapes)), FUSED_SYMBOL, (), "cuda")


class HungryBackend(Relus):
    """Takes the host's memory when it compiles."""

    name = "hungry"

    def compile(self, function, nodes, context, variant=""):
        eaten = []
        while True:
            eaten.append(np.ones(1 << 24))

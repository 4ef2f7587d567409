"""Backends in conflict, for one or two activations each; one of them is slow."""

from collage.backends.common.c_source import CSourceBackend
from collage.rules import op

LOOP = "for (long i = 0; i < {x.size}; ++i) {y}[i] = {value};"
SLOW = "for (volatile int turn = 0; turn < 5000000; ++turn) {{}}\n"


def _loop(region, value):
    return LOOP.format(x=region.inputs[0], y=region.outputs[0], value=value)


class FastRelu(CSourceBackend):
    name = "fast-relu"
    patterns = {"relu": op("Relu")}

    def source(self, region, threads):
        x = region.inputs[0]
        return _loop(region, f"{x}[i] > 0 ? {x}[i] : 0")


class FastReluApart(FastRelu):
    """In conflict with the backend below."""

    conflicts = frozenset({"activations"})


class Activations(CSourceBackend):
    """Sigmoid and a slow Relu; together with `FastRelu` the best plan."""

    name = "activations"
    patterns = {"relu": op("Relu"), "sigmoid": op("Sigmoid")}

    def source(self, region, threads):
        x = region.inputs[0]
        if region.pattern == "sigmoid":
            return _loop(region, f"1 / (1 + expf(-{x}[i]))")
        return SLOW.format() + _loop(region, f"{x}[i] > 0 ? {x}[i] : 0")


class SigmoidApart(CSourceBackend):
    name = "activations"
    patterns = {"sigmoid": op("Sigmoid")}

    def source(self, region, threads):
        return _loop(region, f"1 / (1 + expf(-{region.inputs[0]}[i]))")

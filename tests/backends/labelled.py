"""A backend with two implementations of relu, by label; workers import it."""

from collage.backends.common.c_source import CSourceBackend, Region
from collage.rules import op


class TwoRelusBackend(CSourceBackend):
    """One is right, the other computes half of it."""

    name = "two-relus"
    patterns = {"right": op("Relu"), "half": op("Relu"), "tanh": op("Tanh")}

    def source(self, region: Region, threads: int) -> str:
        x, y = region.inputs[0], region.outputs[0]
        value = {
            "right": f"{x}[i] > 0 ? {x}[i] : 0",
            "half": f"{x}[i] > 0 ? {x}[i] / 2 : 0",
            "tanh": f"tanhf({x}[i])",
        }
        return f"for (int i = 0; i < {y.size}; ++i) {y}[i] = {value[region.pattern]};"

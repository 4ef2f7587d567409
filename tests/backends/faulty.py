"""Backends with faults; workers import them."""

from collage.backends.base import Availability
from collage.backends.common.c_source import CSourceBackend, Region
from collage.rules import op

BODIES = {
    "crash": "*(volatile int *)0 = 1;",
    "wrong": "for (int i = 0; i < {y.size}; ++i) {y}[i] = 0.25f;",
    "refused": "{y}[0] = no_such_name;",
    "unlinked": "{y}[0] = no_such_function(1.0f);",
    "failing": "return 7;",
}
OPERATORS = dict(
    zip(BODIES, ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"), strict=True),
)


class FaultyBackend(CSourceBackend):
    """One fault an operator."""

    name = "faulty"
    patterns = {fault: op(operator) for fault, operator in OPERATORS.items()}
    preamble = "float no_such_function(float);"

    def source(self, region: Region, threads: int) -> str:
        return BODIES[region.pattern].format(y=region.outputs[0])


class RaisingBackend(FaultyBackend):
    """Does not even say whether it is available."""

    name = "raising"

    def availability(self) -> Availability:
        raise ZeroDivisionError("nobody expects this")

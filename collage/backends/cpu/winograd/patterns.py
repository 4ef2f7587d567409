"""Patterns of the kernel: a convolution and its epilogue."""

from collections.abc import Callable

from collage.backends.cpu.winograd.convolution import ACTIVATION_OPS, describe
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.rules.base_rules import DFPattern
from collage.rules.pattern import Match, Pattern, is_constant, op, wildcard
from collage.rules.rule import PartitionRule
from collage.rules.wrap import Union

GATES = ("Sigmoid", "HardSigmoid")


def convolution() -> Pattern:
    return op("Conv", wildcard(), is_constant())


def activated(value: Pattern) -> Pattern:
    """Return an activation of `value`, or `value` times its own sigmoid."""
    return op(ACTIVATION_OPS, value) | op("Mul", value, op(GATES, value))


def added(value: Pattern) -> Pattern:
    return op("Add", value, wildcard())


PATTERNS = {
    "conv3x3": convolution(),
    "conv3x3+activation": activated(convolution()),
    "conv3x3+add": added(convolution()),
    "conv3x3+add+activation": activated(added(convolution())),
    "conv3x3+activation+add": added(activated(convolution())),
    "conv3x3+activation+add+activation": activated(added(activated(convolution()))),
}


def winograd_rule(function: Function) -> PartitionRule:
    """Return the rule for the matches of the patterns accepted by `describe`."""
    refuse = _refuse_in(function)
    return Union(tuple(DFPattern(name, pattern, refuse) for name, pattern in PATTERNS.items()))


def _refuse_in(function: Function) -> Callable[[Match], str | None]:
    def refuse(match: Match) -> str | None:
        try:
            describe(function, match.nodes)
        except BackendError as error:
            return str(error)
        return None

    return refuse

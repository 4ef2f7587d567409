"""Comparison of outputs with the tolerances of the candidates' check.

A saturated softmax hides errors (everything is 0 or 1), so its outputs are also compared as logarithms: the
logits up to a constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collage.measure.numerics import difference

LOGITS = {"float16": (5e-2, 1e-3), "bfloat16": (0.25, 1e-30)}
"""Tolerance of logits, and the smallest compared probability: a float16 below 6e-5 loses its bits."""
WIDE_LOGITS = (2e-2, 1e-30)


@dataclass(frozen=True)
class OutputCheck:
    """Result for one output; `reason` is "" when it passes."""

    name: str
    reason: str = ""

    @property
    def passed(self) -> bool:
        return not self.reason


def compare_outputs(
    expected: Mapping[str, np.ndarray],
    actual: Mapping[str, np.ndarray],
    softmax_outputs: frozenset[str] = frozenset(),
    *,
    quantised: bool = False,
) -> list[OutputCheck]:
    """Compare every expected output; a missing one fails.

    Args:
        expected: outputs of the original model by name.
        actual: outputs of the target by name.
        softmax_outputs: names of the outputs of a softmax; default none.
        quantised: whether the model rounds to small integers; default False.
    """
    checks = []
    for name, reference in expected.items():
        if name not in actual:
            checks.append(OutputCheck(name, "missing"))
            continue
        reason = difference([reference], [actual[name]], quantised=quantised)
        if not reason and name in softmax_outputs and not quantised:
            reason = _logarithms_differ(reference, actual[name])
        checks.append(OutputCheck(name, reason))
    return checks


def _logarithms_differ(expected: np.ndarray, actual: np.ndarray) -> str:
    tolerance, floor = LOGITS.get(expected.dtype.name, WIDE_LOGITS)
    positive = expected.astype(np.float64) > floor
    if not positive.any():
        return ""
    logarithms = np.log(np.maximum(actual[positive].astype(np.float64), floor))
    error = float(np.abs(logarithms - np.log(expected[positive].astype(np.float64))).max())
    return f"logits before the softmax differ by {error:.3g}" if error > tolerance else ""

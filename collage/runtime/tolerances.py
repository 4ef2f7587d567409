"""Tolerances of outputs in the model's own precision: one table for candidates, the gate and self-checks.

A float output passes when |error| <= relative * |expected| + absolute * max|expected|: rounding grows with
the magnitude of the summed values. Integers and booleans must be equal. In a quantised graph two correct
roundings of one value may differ by one step: its floats have a step of 8 bits, its small integers may be off
by one. Where the step of a kernel's output is known, few elements may be off (`MAX_STEP_SHARE`).
`collage.runtime.precision` has the measure of outputs in reduced precision.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

TOLERANCE: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "float64": (1e-3, 1e-4),
        "float32": (1e-3, 1e-4),
        "float16": (1e-2, 5e-3),
        "bfloat16": (5e-2, 2e-2),
    }
)
"""Relative and absolute tolerance of floats; the absolute one is a share of the largest magnitude."""
QUANTISED_TOLERANCE = (1e-2, 2e-2)
"""Relative and absolute tolerance of the floats of a quantised graph, of any type."""

MAX_STEP_SHARE = 0.01
"""Largest share of a kernel's quantised output that may be off by one step."""


def float_tolerance(dtype: np.dtype, *, quantised: bool) -> tuple[float, float] | None:
    """Return the relative and the absolute tolerance of a float type; None for all other types."""
    tolerance = TOLERANCE.get(dtype.name)
    return QUANTISED_TOLERANCE if quantised and tolerance else tolerance


def integer_step(dtype: np.dtype, *, quantised: bool) -> int:
    """Return the largest allowed difference of integers: 1 for small ones of a quantised graph."""
    return int(quantised and dtype.itemsize == 1 and dtype.kind in "iu")

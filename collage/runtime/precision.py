"""What "within the tolerance" means when a plan may compute in less than float32.

The error of an output is max |actual - expected| / max |expected|: the largest deviation of any
element, as a share of the output's own scale. It is a maximum and not a mean, so no wrong element
hides among right ones, and relative to the whole output and not to each element, because a sum of
large terms that cancels has rounding errors of the terms' size. Three cases need care:

* an output that a Softmax or a Sigmoid makes is a probability: its scale is 1, whatever its largest
  element is on the inputs at hand. A detector that finds nothing answers 1e-5 everywhere, and a
  relative error of that would say nothing;
* integers and booleans (an ArgMax, the indices of a TopK, sampled tokens) have no scale: every
  element must be equal, so a plan that flips one on any of the inputs is refused;
* NaN, infinities and masks (beyond `MASK`) must be where the reference has them, with its sign.

Candidates, the gate and a bundle's self-check all use this one definition.
"""

import math

import numpy as np

MASK = 1e30
"""Magnitudes from here on stand for infinity: attention masks hold the least float32."""


def output_error(expected: np.ndarray, actual: np.ndarray, *, probability: bool = False) -> float:
    """Return the error of one output; +inf where the outputs cannot be compared.

    >>> output_error(np.float32([1, 4]), np.float32([1, 4.04])) < 0.0101
    True
    >>> output_error(np.int64([1, 4]), np.int64([1, 3]))
    inf
    """
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return math.inf
    if expected.dtype.kind in "iub":
        return 0.0 if np.array_equal(expected, actual) else math.inf
    wide = np.promote_types(expected.dtype, np.float32)
    reference, output = expected.astype(wide, copy=False), actual.astype(wide, copy=False)
    ordinary = np.abs(reference) < MASK
    if not _same_masks(reference[~ordinary], output[~ordinary]):
        return math.inf
    reference, output = reference[ordinary], output[ordinary]
    if not reference.size:
        return 0.0
    if not np.isfinite(output).all():
        return math.inf
    scale = 1.0 if probability else float(np.abs(reference).max())
    worst = float(np.abs(output - reference).max())
    return worst / scale if scale > 0 else (math.inf if worst > 0 else 0.0)


def _same_masks(expected: np.ndarray, actual: np.ndarray) -> bool:
    if not np.array_equal(np.isnan(expected), np.isnan(actual)):
        return False
    numbers = ~np.isnan(expected)
    large = np.abs(actual[numbers]) >= MASK
    return bool(large.all()) and np.array_equal(expected[numbers] > 0, actual[numbers] > 0)

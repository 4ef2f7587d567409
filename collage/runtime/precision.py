"""The error of an output in reduced precision.

The error is max |actual - expected| / max |expected|: the largest deviation of an element, as a share of the
output's scale. It is a maximum, not a mean, so no wrong element hides among right ones. It is relative to the
whole output, not to each element, because a sum of cancelling large terms has rounding errors of the terms'
size. Three cases need care:

* the output of a Softmax or a Sigmoid is a probability with the scale 1, for any largest element on the
  given inputs. A detector without a detection returns 1e-5 everywhere, and an error relative to that
  would be meaningless;
* integers and booleans (an ArgMax, the indices of a TopK, sampled tokens) have no scale: every element must
  be equal;
* NaN, infinities and masks (beyond `MASK`) must be in the places of the reference, with the same sign.

Candidates, the gate and a bundle's self-check use this definition.
"""

import math

import numpy as np

MASK = 1e30
"""Magnitudes from this value on count as infinity: attention masks hold the smallest float32."""


def output_error(expected: np.ndarray, actual: np.ndarray, *, probability: bool = False) -> float:
    """Return the error of one output; +inf if the outputs cannot be compared.

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

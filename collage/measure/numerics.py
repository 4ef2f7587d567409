"""Does a candidate compute the reference's numbers?

The tolerance grows with the magnitude of the whole tensor: rounding follows what was summed, not the
one element that cancelled.
"""

import numpy as np

TOLERANCE = {"float16": (1e-2, 5e-3), "bfloat16": (5e-2, 2e-2)}
FLOAT = (1e-3, 1e-4)


def differs(expected: np.ndarray, actual: np.ndarray) -> str:
    """Return what differs, or "" when the numbers are the same."""
    if expected.size == 0:
        return ""
    if expected.dtype.kind not in "fV":
        wrong = int(np.count_nonzero(expected != actual))
        return f"{wrong} of {expected.size} elements differ" if wrong else ""
    rtol, atol = TOLERANCE.get(str(expected.dtype), FLOAT)
    reference, result = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(reference)
    if not np.array_equal(finite, np.isfinite(result)):
        return "NaN or infinity in other places than in the reference"
    if not finite.any():
        return ""
    magnitude = np.abs(reference[finite])
    error = np.abs(result[finite] - reference[finite])
    worst = float((error / (rtol * magnitude + atol * magnitude.max() + 1e-30)).max())
    return f"the error is {worst:.3g} times what is allowed" if worst > 1 else ""

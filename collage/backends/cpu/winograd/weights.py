"""Winograd's matrices, and transformed weights in the layout of native/kernels/winograd.h.

F(m, 3) computes m outputs of a 3-tap filter from n = m + 2 inputs with n products instead of 3 m:
y = A'[(G g) * (B' d)]. The three matrices follow from n - 1 points (and infinity): the two polynomials are
evaluated there, multiplied and interpolated (Toom and Cook). All points are correct; they differ in rounding
errors. For F(4, 3), 0, +-sqrt(1/2), +-sqrt(2) has less than half the mean and a
quarter of the largest error of the usual 0, +-1, +-2.

A and B' are written out in native/kernels/winograd_kernels.h; G is applied here, in double precision,
or there in every run.
"""

from functools import cache
from math import prod, sqrt

import numpy as np

from collage.backends.common.native_kernels import by_panels

POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, sqrt(0.5), -sqrt(0.5), sqrt(2.0), -sqrt(2.0))}
"""The finite points of F(m, 3) by m, in the order of the kernel."""


@cache
def filter_matrix(tile: int) -> np.ndarray:
    """Return G [tile + 2, 3]: values of the filter's polynomial, over the interpolation's divisors.

    >>> filter_matrix(2).tolist()
    [[-1.0, -0.0, -0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]]
    """
    points = POINTS[tile]
    rows = [
        [point**power / prod(point - other_point for other_point in points if other_point != point)
         for power in range(3)]
        for point in points
    ]  # fmt: skip
    return np.array([*rows, [0.0, 0.0, 1.0]])


def transformed_weights(weights: np.ndarray, tile: int) -> np.ndarray:
    """Transform `weights` [out, in, 3, 3] to [panels, (tile + 2)^2, in, PANEL], padded with zeros."""
    matrix = filter_matrix(tile)
    product = np.einsum("ik,ockl,jl->ocij", matrix, weights.astype(np.float64), matrix)
    return np.ascontiguousarray(by_panels(product.astype(np.float32)).swapaxes(1, 2))

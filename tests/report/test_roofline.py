"""The roofline: dots for regions with products, none above the drawing, and shares of the bound."""

import re

import pytest

from collage.report.data import PeakRates, RegionReport
from collage.report.drawing import backend_marks
from collage.report.roofline import HEIGHT, draw_roofline, reached

PEAKS = PeakRates(flops_per_s=1e11, bytes_per_s=1e11, memory_bytes_per_s=2e10)


def region(flops: int, moved: int, measured_s: float | None = 1e-4) -> RegionReport:
    bound_s = max(flops / 1e11, moved / 1e11)
    return RegionReport(nodes=(0,), ops=("Conv",), backend="tvm", measured_s=measured_s, bound_s=bound_s,
                        limit="flops", moved_bytes=moved, flops=flops)  # fmt: skip


@pytest.mark.parametrize(
    ("flops", "moved", "dots"), [(10**6, 10**5, 1), (0, 10**5, 0), (10**6, 0, 0)]
)
def test_regions_with_products_have_a_dot(flops, moved, dots):
    text = draw_roofline([region(flops, moved)], PEAKS, backend_marks(["tvm"]))
    assert text.count("<circle") == dots


def test_faster_is_higher_and_within_the_drawing():
    slow, fast = region(10**6, 10**5, 1e-3), region(10**6, 10**5, 2e-5)
    text = draw_roofline([slow, fast], PEAKS, backend_marks(["tvm"]))
    lower, upper = (float(y) for y in re.findall(r'cy="([\d.]+)"', text))
    assert 0 < upper < lower < HEIGHT


def test_the_share_of_the_bound():
    assert reached(region(10**6, 10**5, 1e-4)) == pytest.approx(0.1)
    assert reached(region(0, 0)) is None
    assert reached(region(10**6, 10**5, None)) is None

"""The roofline plot: speed over arithmetic intensity of every region, both axes logarithmic.

The roof is the highest measured rates, from any cache; lower bounds use the same rates. The dashed line
is the memory bandwidth; a region above it reads its data from a cache. Regions without memory traffic or
without products (FLOP 0) are only in the table.
"""

import math
from collections.abc import Mapping, Sequence

from collage.report.data import PeakRates, RegionReport
from collage.report.drawing import Mark
from collage.report.formatting import duration

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000.0, 300.0, 90.0, 20.0, 16.0, 40.0


def reached(region: RegionReport) -> float | None:
    """Return lower bound over time of a region: 1 is the limit of direct algorithms."""
    seconds = region.measured_s or region.predicted_s
    return region.bound_s / seconds if seconds and region.bound_s else None


def draw_roofline(
    regions: Sequence[RegionReport], peaks: PeakRates | None, marks: Mapping[str, Mark]
) -> str:
    """Return the drawing as SVG; "" without peaks or without a region with products."""
    placed = [
        (number, region, seconds)
        for number, region in enumerate(regions)
        if region.flops
        and region.moved_bytes
        and (seconds := region.measured_s or region.predicted_s)
    ]
    if peaks is None or not placed:
        return ""
    intensities = [region.flops / region.moved_bytes for _, region, _ in placed]
    speeds = [region.flops / seconds for _, region, seconds in placed]
    ridge = peaks.flops_per_s / peaks.bytes_per_s
    axes = _Axes(
        (min(*intensities, ridge) / 2, max(*intensities, ridge) * 4),
        (min(*speeds, peaks.flops_per_s / 100) / 2, max(*speeds, peaks.flops_per_s) * 2),
    )
    dots = "".join(
        _dot(axes, number, region, seconds, marks=marks) for number, region, seconds in placed
    )
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="100%" role="img" '
        'aria-label="Speed over intensity of every region with products, below the roof">'
        f"{axes.ticks()}{_roof(axes, peaks)}{dots}</svg>\n"
    )


class _Axes:
    """Logarithmic axes: FLOP per byte to the right, FLOP per second upwards."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.across, self.up = across, up

    def x(self, intensity: float) -> float:
        low, high = map(math.log, self.across)
        return LEFT + (math.log(intensity) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, speed: float) -> float:
        low, high = map(math.log, self.up)
        place = min(1.0, max(0.0, (math.log(speed) - low) / (high - low)))
        return HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> str:
        parts = [f'<text class="small" x="{LEFT:g}" y="{HEIGHT - 4:g}">FLOP per byte moved</text>']
        for power in _powers(self.across):
            parts.append(f'<text class="small" x="{self.x(10.0**power):.1f}" '
                         f'y="{HEIGHT - BOTTOM + 16:g}">{10.0**power:g}</text>')  # fmt: skip
        for power in _powers(self.up):
            y = self.y(10.0**power)
            parts.append(
                f'<path class="edge" d="M{LEFT:g} {y:.1f}H{WIDTH - RIGHT:g}" opacity="0.3"/>'
            )
            parts.append(f'<text class="small" x="0" y="{y + 4:.1f}">{10.0 ** (power - 9):g} GFLOP/s'
                         "</text>")  # fmt: skip
        return "".join(parts)


def _powers(limits: tuple[float, float]) -> range:
    return range(math.ceil(math.log10(limits[0])), math.floor(math.log10(limits[1])) + 1)


def _roof(axes: _Axes, peaks: PeakRates) -> str:
    """Draw the roof, and the memory's bandwidth below it."""
    parts = []
    for rate, dashes in (
        (peaks.bytes_per_s, ""),
        (peaks.memory_bytes_per_s, ' stroke-dasharray="5 4"'),
    ):
        ridge = peaks.flops_per_s / rate
        low = max(axes.across[0], axes.up[0] / rate)
        end = min(max(ridge, low), axes.across[1])
        path = f"M{axes.x(low):.1f} {axes.y(low * rate):.1f}L{axes.x(end):.1f} {axes.y(end * rate):.1f}"
        level = "" if dashes else f"H{axes.x(axes.across[1]):.1f}"
        parts.append(f'<path class="edge" d="{path}{level}"{dashes}/>')
    return "".join(parts)


def _dot(
    axes: _Axes, number: int, region: RegionReport, seconds: float, *, marks: Mapping[str, Mark]
) -> str:
    colour, letter = marks[region.backend]
    x, y = axes.x(region.flops / region.moved_bytes), axes.y(region.flops / seconds)
    share = reached(region) or 0.0
    title = f"region {number}, {letter}: {duration(seconds)}, {share:.0%} of the bound by {region.limit}"
    return (
        f'<circle class="segment k{colour}" data-region="{number}" cx="{x:.1f}" cy="{y:.1f}" r="6">'
        f"<title>{title}</title></circle>"
    )

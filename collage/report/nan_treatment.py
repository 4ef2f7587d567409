"""The treatment of NaN by the regions of a plan, for the report and the manifest (docs/numerics.md)."""

from collections.abc import Collection, Sequence

from collage.bundle.manifest import NanRegion, NanTreatment
from collage.cost import Cost
from collage.report.summary import PlannedRegion
from collage.search.problem import Option

ORIGINAL_HIDES = frozenset({"openvino"})
"""Frameworks whose runs of an original file are not judged on edge inputs, and are known to hide NaN."""


def nan_treatment(option: Option, cost: Cost, spreading: Collection[str]) -> NanTreatment:
    """Return what a region's kernel does with NaN.

    Args:
        spreading: names of backends that spread NaN.
    """
    if cost.hides_nan or (is_original(option) and option.backend in ORIGINAL_HIDES):
        return NanTreatment.HIDDEN
    return NanTreatment.SPREAD if option.backend in spreading else NanTreatment.KEPT


def is_original(option: Option) -> bool:
    """Tell whether the option is the original file itself."""
    return isinstance(option.key, tuple) and option.key[:1] == ("original",)


def nan_regions(plan: Sequence[PlannedRegion]) -> tuple[NanRegion, ...]:
    """Return the manifest's entries: the regions that do not keep NaN."""
    return tuple(
        NanRegion(function=r.function, nodes=r.nodes, backend=r.backend, nan=r.nan)
        for r in plan
        if r.nan
    )


def nan_text(plan: Sequence[PlannedRegion]) -> str:
    """Summarise the treatment of NaN; "" where every region keeps it.

    >>> nan_text([])
    ''
    """
    parts = []
    for treatment in (NanTreatment.HIDDEN, NanTreatment.SPREAD):
        regions = [region for region in plan if region.nan is treatment]
        if regions:
            names = ", ".join(sorted({region.backend for region in regions}))
            parts.append(f"{treatment} by {len(regions)} of {len(plan)} regions ({names})")
    return "; ".join(parts)

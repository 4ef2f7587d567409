"""Inlining of injective stages into their readers.

A stage is inlined unless that repeats work. Stored are: stages with several sums as readers (a gelu before a
layer norm), expensive stages with many reads per element (a root per row), transpositions and paddings under
a window or a product (its vectors must be contiguous and unconditional). A stage after a sum remains a stage
of its own, next to the sum in the cache. On a GPU only such stages are inlined: the search fuses an ending
with the sum if the ending reads no other stored stage.
"""

from math import prod

from tvm import s_tir

from collage.backends.common.tvm.nest import Block, Nest, nest, stages
from collage.backends.common.tvm.schedule_steps import optional_step

REPEATS = 1.5
"""Least reads of one element by a window or a product for a stored copy of its operand."""


def inline_stages(plan: s_tir.Schedule) -> None:
    """Inline injective stages; stages without an inline form (a scan, a scatter) remain stored."""
    for block in stages(plan):
        if _worth_inlining(plan, block):
            with optional_step(f"inline {plan.get(block).name_hint}"):
                plan.compute_inline(block)


def inline_endings(plan: s_tir.Schedule) -> None:
    """Inline injective stages with results as their only readers, for a GPU."""
    for block in stages(plan):
        if plan.get_consumers(block) and _is_ending(plan, block):
            plan.compute_inline(block)


def _is_ending(plan: s_tir.Schedule, block: Block) -> bool:
    try:
        own, anchors = nest(plan, block), _anchors(plan, block)
    except ValueError:
        return False
    return not any(any(stage.reducing) for stage in (own, *anchors))


def _worth_inlining(plan: s_tir.Schedule, block: Block) -> bool:
    readers = plan.get_consumers(block)
    if not readers:
        return False
    try:
        own = nest(plan, block)
        anchors = _anchors(plan, block)
    except ValueError:
        return True
    if any(own.reducing):
        return False
    if is_transposing(own) and len(anchors) > 1:
        return False
    if own.expensive and (len(anchors) > 1 or any(_repeats(own, anchor) > 1 for anchor in anchors)):
        return False
    awkward = own.conditional or is_transposing(own)
    return not (
        awkward and any(reuses(anchor) and _repeats(own, anchor) >= REPEATS for anchor in anchors)
    )


def _anchors(plan: s_tir.Schedule, block: Block) -> list[Nest]:
    """Return the reductions and results with the stage as operand, directly or through other stages."""
    anchors: dict[str, Nest] = {}
    pending = list(plan.get_consumers(block))
    while pending:
        reader = pending.pop()
        name = plan.get(reader).name_hint
        if name in anchors:
            continue
        reader_nest = nest(plan, reader)
        readers = plan.get_consumers(reader)
        if any(reader_nest.reducing) or not readers:
            anchors[name] = reader_nest
        else:
            pending.extend(readers)
    return list(anchors.values())


def _repeats(own: Nest, anchor: Nest) -> float:
    return prod(anchor.extents) / max(1, prod(own.extents))


def reuses(anchor: Nest) -> bool:
    """Tell whether a reduction reads its operands repeatedly: a window or a product."""
    if not any(anchor.reducing):
        return False
    size = prod(anchor.extents)
    return any(size > prod(int(n) for n in read.buffer.shape) for read in anchor.reads)


def is_transposing(stage: Nest) -> bool:
    """Tell whether a tensor is contiguous along an outer loop."""
    return moved_loop(stage) is not None


def moved_loop(stage: Nest) -> int | None:
    """Return the contiguous loop of a transposed operand, None without one."""
    wide = [n for n, extent in enumerate(stage.extents) if extent > 1]
    if len(wide) < 2 or any(stage.reducing):
        return None
    for access in stage.reads:
        if access.strides[wide[-1]] not in (0, 1):
            for loop in wide[:-1]:
                if access.strides[loop] == 1:
                    return loop
    return None

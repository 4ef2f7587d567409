"""Which stages of a kernel are stored, and which are computed where they are read.

An injective stage is computed in place, unless that repeats work: stages that end in several sums
(a gelu before a layer norm), slow ones that are read many times over (a root per row), transpositions
and paddings under a window or a product, whose readers want contiguous, unconditional vectors.
A stage after a sum stays a stage of its own, next to the sum in the cache. On a GPU it is that too, but
the only one: the search fuses it with the sum, which it can where it reads nothing else that is stored.
"""

from math import prod

from tvm import s_tir

from collage.backends.cpu.tvm.nest import Block, Nest, nest, stages

REPEATS = 1.5
"""Reads of one element by a window or a product from which its operand is worth copying."""


def inline_stages(plan: s_tir.Schedule) -> None:
    """Compute injective stages where they are read; what TVM refuses stays stored."""
    for block in stages(plan):
        if _worth_inlining(plan, block):
            try:
                plan.compute_inline(block)
            except Exception:
                # TVM cannot write this one as an expression of its reader (a scan, a scatter).
                continue


def inline_endings(plan: s_tir.Schedule) -> None:
    """Compute injective stages where results read them; what a reduction reads stays stored."""
    for block in stages(plan):
        if plan.get_consumers(block) and _is_ending(plan, block):
            plan.compute_inline(block)


def _is_ending(plan: s_tir.Schedule, block: Block) -> bool:
    try:
        own, anchors = nest(plan, block), _anchors(plan, block)
    except ValueError:
        return False
    return not any(any(one.reducing) for one in (own, *anchors))


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
    if own.expensive and (len(anchors) > 1 or any(_repeats(own, one) > 1 for one in anchors)):
        return False
    awkward = own.conditional or is_transposing(own)
    return not (awkward and any(reuses(one) and _repeats(own, one) >= REPEATS for one in anchors))


def _anchors(plan: s_tir.Schedule, block: Block) -> list[Nest]:
    """Return the reductions and results that read the stage, directly or through others."""
    found: dict[str, Nest] = {}
    pending = list(plan.get_consumers(block))
    while pending:
        reader = pending.pop()
        name = plan.get(reader).name_hint
        if name in found:
            continue
        described = nest(plan, reader)
        readers = plan.get_consumers(reader)
        if any(described.reducing) or not readers:
            found[name] = described
        else:
            pending.extend(readers)
    return list(found.values())


def _repeats(own: Nest, anchor: Nest) -> float:
    return prod(anchor.extents) / max(1, prod(own.extents))


def reuses(anchor: Nest) -> bool:
    """Tell whether a reduction reads its operands several times: a window or a product."""
    if not any(anchor.reducing):
        return False
    size = prod(anchor.extents)
    return any(size > prod(int(n) for n in read.buffer.shape) for read in anchor.reads)


def is_transposing(found: Nest) -> bool:
    """Tell whether some tensor is contiguous along a loop that is not the innermost."""
    return moved_loop(found) is not None


def moved_loop(found: Nest) -> int | None:
    """Return the loop along which a transposed tensor is contiguous."""
    wide = [n for n, extent in enumerate(found.extents) if extent > 1]
    if len(wide) < 2 or any(found.reducing):
        return None
    for access in found.reads:
        if access.strides[wide[-1]] not in (0, 1):
            for loop in wide[:-1]:
                if access.strides[loop] == 1:
                    return loop
    return None

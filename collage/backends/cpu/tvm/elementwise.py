"""Schedules of stages without reductions: few loops, whole vectors, square tiles for transpositions.

Adjacent loops contiguous in every tensor are fused, so rows of odd length disappear. The innermost loop is
vectorised if its length is a multiple of a vector; otherwise LLVM's vectoriser handles the remainder of a
row. A transposition runs over square tiles: each cache line is used completely while it is in the cache.
"""

from dataclasses import replace
from math import prod

from tvm import s_tir

from collage.backends.common.tvm.inline import moved_loop
from collage.backends.common.tvm.nest import Block, Nest, nest

VECTORS = (16, 8)
"""Lanes of a vector, one register; with more, LLVM's comparisons become scalar code."""
LONG = 256
"""Iterations of a loop from which LLVM's vectoriser is equally fast."""
LINES = 2
"""Adjacent cache lines per tile."""
TILES = (16, 8, 7, 4)


def schedule_elementwise(plan: s_tir.Schedule, block: Block) -> None:
    """Schedule the stage's own loops."""
    stage = fuse_contiguous(plan, nest(plan, block))
    if not stage.spatial:
        return
    moved = moved_loop(stage)
    if moved is not None and moved >= stage.shared:
        _tile(plan, stage, moved)
    else:
        _vectorize_innermost(plan, stage)


def fuse_contiguous(plan: s_tir.Schedule, stage: Nest) -> Nest:
    """Fuse adjacent loops contiguous in all tensors; return the new nest."""
    groups: list[list[int]] = []
    for loop in stage.spatial:
        if groups and _is_contiguous(stage, _stepping(stage, groups[-1]), loop):
            groups[-1].append(loop)
        else:
            groups.append([loop])
    loops, extents = list(stage.loops[: stage.shared]), list(stage.extents[: stage.shared])
    for group in groups:
        members = [stage.loops[n] for n in group]
        loops.append(plan.fuse(*members) if len(members) > 1 else members[0])
        extents.append(prod(stage.extents[n] for n in group))
    shared = [[n] for n in range(stage.shared)]
    stepping = [_stepping(stage, group) for group in [*shared, *groups]]
    return replace(
        stage,
        loops=tuple(loops),
        extents=tuple(extents),
        reducing=(False,) * len(loops),
        guarded=tuple(any(stage.guarded[n] for n in group) for group in [*shared, *groups]),
        accesses=tuple(
            replace(access, strides=tuple(access.strides[n] for n in stepping))
            for access in stage.accesses
        ),
    )


def _stepping(stage: Nest, group: list[int]) -> int:
    """Return the loop with the fused loop's stride: the innermost of length above one."""
    return next((n for n in reversed(group) if stage.extents[n] > 1), group[-1])


def _is_contiguous(stage: Nest, outer: int, inner: int) -> bool:
    if stage.extents[outer] == 1 or stage.extents[inner] == 1:
        return True
    if stage.guarded[outer] or stage.guarded[inner]:
        return False
    for access in stage.accesses:
        outer_stride, inner_stride = access.strides[outer], access.strides[inner]
        if (
            outer_stride is None
            or inner_stride is None
            or outer_stride != inner_stride * stage.extents[inner]
        ):
            return False
    return True


def _vectorize_innermost(plan: s_tir.Schedule, stage: Nest) -> None:
    """Vectorise the innermost loop where its length and all strides allow it.

    Long loops, possibly fused ones, are left to LLVM: TVM does not simplify the divisions of a fused index
    within a vector.
    """
    last = stage.spatial[-1]
    extent, inner = stage.extents[last], stage.loops[last]
    if extent > LONG or stage.guarded[last]:
        return
    if any(access.strides[last] not in (0, 1) for access in stage.accesses):
        return
    lanes = next((n for n in VECTORS if extent % n == 0), 0)
    if lanes:
        plan.vectorize(plan.split(inner, [None, lanes])[1] if extent > lanes else inner)


def _tile(plan: s_tir.Schedule, stage: Nest, moved: int) -> None:
    last = stage.spatial[-1]
    size = next((n for n in TILES if stage.extents[moved] % n == 0), 1)
    width = next((n for n in TILES if stage.extents[last] % n == 0), 1)
    if size == 1 or width == 1:
        return
    outer, inner = plan.split(stage.loops[moved], [None, size])
    outer_last, inner_last = plan.split(stage.loops[last], [None, width])
    between = [stage.loops[n] for n in stage.spatial if moved < n < last]
    lines = LINES if int(plan.get(outer_last).extent) % LINES == 0 else 1
    outer_last, several = plan.split(outer_last, [None, lines])
    plan.reorder(outer_last, outer, *between, inner, several, inner_last)
    if not stage.guarded[last]:
        plan.vectorize(inner_last)

"""Passes without sums: as few loops as possible, whole vectors, transpositions in square tiles.

Neighbouring loops that every tensor walks as one are fused, so that rows of odd length disappear. The
innermost loop is vectorised where a whole number of vectors fits; else LLVM's own vectoriser handles the
rest of a row. A transposition walks square tiles, whose cache lines are used up while they are there.
"""

from tvm import s_tir

from collage.backends.tvm.inline import moved_loop
from collage.backends.tvm.nest import Block, Nest, nest

VECTORS = (64, 32, 16, 8)
"""Elements handled by one iteration: up to four registers of 512 bits."""
TILES = (16, 8, 7, 4)


def schedule_elementwise(plan: s_tir.Schedule, block: Block) -> None:
    """Schedule the stage's own loops."""
    _fuse_contiguous(plan, nest(plan, block))
    found = nest(plan, block)
    if not found.spatial:
        return
    moved = moved_loop(found)
    if moved is not None and moved >= found.shared:
        _tile(plan, found, moved)
    else:
        vectorize_innermost(plan, found)


def _fuse_contiguous(plan: s_tir.Schedule, found: Nest) -> None:
    """Fuse neighbouring loops that all tensors walk as one, from the innermost outwards."""
    own = list(found.spatial)
    while len(own) > 1:
        group = [own.pop()]
        while own and _walk_as_one(found, own[-1], group[0]):
            group.insert(0, own.pop())
        if len(group) > 1:
            plan.fuse(*(found.loops[n] for n in group))


def _walk_as_one(found: Nest, outer: int, inner: int) -> bool:
    if found.extents[outer] == 1 or found.extents[inner] == 1:
        return True
    for access in found.accesses:
        one, two = access.strides[outer], access.strides[inner]
        if one is None or two is None or one != two * found.extents[inner]:
            return False
    return True


def vectorize_innermost(plan: s_tir.Schedule, found: Nest) -> None:
    """Make whole vectors of the innermost loop where its length and all strides allow it."""
    last = found.spatial[-1]
    if found.conditional or any(access.strides[last] not in (0, 1) for access in found.accesses):
        return
    for size in VECTORS:
        if found.extents[last] % size == 0:
            inner = found.loops[last]
            if found.extents[last] > size:
                inner = plan.split(inner, [None, size])[1]
            plan.vectorize(inner)
            return


def _tile(plan: s_tir.Schedule, found: Nest, moved: int) -> None:
    last = found.spatial[-1]
    size = next((n for n in TILES if found.extents[moved] % n == 0), 1)
    width = next((n for n in TILES if found.extents[last] % n == 0), 1)
    if size == 1 or width == 1:
        return
    outer, inner = plan.split(found.loops[moved], [None, size])
    outer_last, inner_last = plan.split(found.loops[last], [None, width])
    between = [found.loops[n] for n in found.spatial if moved < n < last]
    plan.reorder(outer, *between, outer_last, inner, inner_last)
    if not found.conditional:
        plan.vectorize(inner_last)

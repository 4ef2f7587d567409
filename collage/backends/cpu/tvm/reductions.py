"""Schedules of sums and maxima: rows in one loop, columns in strips, windows unrolled, products in tiles.

If adjacent elements belong to one sum, its loops are fused as far as the memory layout allows, and LLVM keeps
several vectors of partial sums (`target` allows the reordering). If they belong to different sums, a strip of
sums remains in registers during the loop over the reduced dimension; with repeated reads (a product), strips
of several rows are summed together. A small window is unrolled: the width of the result is then the innermost
loop, and LLVM vectorises it for any stride and length.
"""

from math import prod

from tvm import s_tir

from collage.backends.common.tvm.inline import reuses
from collage.backends.common.tvm.nest import Block, Loop, Nest, nest

LANES = 16
STRIPS = (64, 48, 32, 16, 8)
"""Sums in registers: up to four vectors of 512 bits."""
TILE_STRIPS = (32, 48, 16, 64, 8)
"""The same for products, beside `TILE_ROWS` rows."""
TILE_ROWS = (6, 8, 4, 5, 7, 3, 2)
MAX_UNROLLED_WINDOW = 81
"""Largest unrolled window (9x9)."""
SMALL_WINDOW = 9
REGISTERS = 16
"""Concurrent vectors of sums of one window."""
ROWS = 4
"""Concurrent rows with vectors by LLVM."""
MAX_ROW_WIDTH = 64
"""Longest row of results in one vector, for windows above `SMALL_WINDOW`."""


def schedule_reduction(plan: s_tir.Schedule, block: Block) -> None:
    """Schedule the stage's own loops; `clear_sums` initialises the sums afterwards."""
    stage = nest(plan, block)
    if not stage.reads:
        return
    if is_window(stage):
        _unroll_window(plan, stage)
    elif _along_width(stage):
        _keep_strip(plan, stage)
    else:
        _fuse_reduced(plan, stage)


def pad_product(plan: s_tir.Schedule, block: Block) -> None:
    """Pad a product's odd rows to whole vectors, with copies of the operand and of the result.

    Rows of 49 results are five times faster as padded rows of 64.
    """
    stage = nest(plan, block)
    width = _width(stage)
    if width is None or is_window(stage) or not reuses(stage) or not _along_width(stage):
        return
    if stage.extents[width] > 8 and stage.extents[width] % 8:
        plan.pad_einsum(block, [LANES if n == width else 1 for n in range(len(stage.loops))])


def clear_sums(plan: s_tir.Schedule, block: Block) -> None:
    """Initialise strips of sums in a separate loop before the reduced loops."""
    stage = nest(plan, block)
    if not stage.reduced or is_window(stage) or not _along_width(stage):
        return
    first = stage.reduced[0]
    init = plan.decompose_reduction(block, stage.loops[first])
    last = plan.get_loops(init)[-1]
    if int(plan.get(last).extent) in (8, LANES):
        plan.vectorize(last)


def is_window(stage: Nest) -> bool:
    """Tell whether the stage reduces a small sliding window over its operand."""
    if prod(stage.extents[n] for n in stage.reduced) > MAX_UNROLLED_WINDOW or not reuses(stage):
        return False
    last = _width(stage)
    return last is not None and any(
        read.strides[last] and any(read.strides[n] == 1 for n in stage.reduced)
        for read in stage.reads
    )


def _width(stage: Nest) -> int | None:
    """Return the innermost loop of the result."""
    wide = [n for n in stage.spatial if stage.extents[n] > 1]
    return wide[-1] if wide else None


def _along_width(stage: Nest) -> bool:
    """Tell whether adjacent elements in memory belong to different sums."""
    width = _width(stage)
    if width is None or stage.written.strides[width] != 1:
        return False
    return all(read.strides[width] in (0, 1) for read in stage.reads) and any(
        read.strides[width] == 1 for read in stage.reads
    )


def _fuse_reduced(plan: s_tir.Schedule, stage: Nest) -> None:
    """Fuse reduced loops contiguous in every operand, from the innermost outwards."""
    group = [stage.reduced[-1]]
    for outer in reversed(stage.reduced[:-1]):
        inner = group[0]
        pairs = [(read.strides[outer], read.strides[inner]) for read in stage.reads]
        if any(a is None or b is None or a != b * stage.extents[inner] for a, b in pairs):
            break
        group.insert(0, outer)
    if len(group) > 1:
        plan.fuse(*(stage.loops[n] for n in group))


def _keep_strip(plan: s_tir.Schedule, stage: Nest) -> None:
    width = _width(stage)
    assert width is not None
    rows = _rows(stage, width)
    strips = STRIPS if rows is None else TILE_STRIPS
    upper, strip = _cut(plan, stage, width, strips)
    unrolled = [] if rows is None else [_cut(plan, stage, rows, TILE_ROWS)]
    outer = [stage.loops[n] for n in stage.spatial if n not in (width, rows)]
    reduced = [stage.loops[n] for n in stage.reduced]
    plan.reorder(
        *outer,
        *(upper_loop for upper_loop, _ in unrolled),
        upper,
        *reduced,
        *(inner_loop for _, inner_loop in unrolled),
        strip,
    )
    for _, inner in unrolled:
        plan.unroll(inner)
    _vectorize(plan, strip)


def _vectorize(plan: s_tir.Schedule, strip: Loop) -> None:
    """Vectorise a strip; several vectors are unrolled."""
    size = int(plan.get(strip).extent)
    if size > LANES and size % LANES == 0:
        several, strip = plan.split(strip, [None, LANES])
        if size <= STRIPS[0]:
            plan.unroll(several)
    if size in (8, LANES) or (size <= STRIPS[0] and size % LANES == 0):
        plan.vectorize(strip)


def _rows(stage: Nest, width: int) -> int | None:
    """Return a loop over results with a common operand, contiguous along `width`; None without one."""
    for read in stage.reads:
        if read.strides[width] == 1:
            for loop in reversed(stage.spatial):
                if loop != width and read.strides[loop] == 0 and stage.extents[loop] > 1:
                    return loop
    return None


def _cut(plan: s_tir.Schedule, stage: Nest, loop: int, sizes: tuple[int, ...]) -> tuple[Loop, Loop]:
    """Split off an inner loop of the first size in `sizes` that divides the loop, or all of a short one."""
    extent = stage.extents[loop]
    size = next((n for n in sizes if extent % n == 0), extent if extent <= max(sizes) else 1)
    outer, inner = plan.split(stage.loops[loop], [None, size])
    return outer, inner


def _unroll_window(plan: s_tir.Schedule, stage: Nest) -> None:
    width = _width(stage)
    assert width is not None
    window = [stage.loops[n] for n in stage.reduced]
    is_one_vector = _is_one_vector(stage, width)
    above = [n for n in stage.spatial if n < width and stage.extents[n] > 1]
    if above:
        limit = max(1, REGISTERS // -(-stage.extents[width] // LANES)) if is_one_vector else ROWS
        rows = max(n for n in range(1, limit + 1) if stage.extents[above[-1]] % n == 0)
        upper, lower = plan.split(stage.loops[above[-1]], [None, rows])
        plan.reorder(upper, stage.loops[width], *window, lower)
        plan.unroll(lower)
    for loop in window:
        plan.unroll(loop)
    if is_one_vector:
        plan.vectorize(stage.loops[width])


def _is_one_vector(stage: Nest, width: int) -> bool:
    """Tell whether a row of results is fastest as one vector of odd length."""
    if any(access.strides[width] not in (0, 1) for access in stage.accesses):
        return False
    taps = prod(stage.extents[n] for n in stage.reduced)
    return stage.extents[width] <= (LANES if taps <= SMALL_WINDOW else MAX_ROW_WIDTH)

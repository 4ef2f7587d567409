"""Stages that work through the same rows run row by row, so that a row stays in the first-level cache.

Softmax and layer norm are several passes over a row: maximum, powers, sum, quotient. Every stage moves
under the loops that it has in common with all its readers: those at which the readers take exactly the
part that the stage writes there, so that nothing is computed twice.
"""

from math import prod

from tvm import s_tir

from collage.backends.cpu.tvm.inline import is_transposing, reuses
from collage.backends.cpu.tvm.nest import Access, Block, Nest, nest, stages


def join_rows(plan: s_tir.Schedule) -> None:
    """Move stages under the outer loops of their readers, the last stage first."""
    for block in reversed(stages(plan)):
        readers = plan.get_consumers(block)
        if readers:
            try:
                _join(plan, block, readers)
            except Exception:
                # A scan, a scatter, or a result of the kernel, which TVM does not move.
                continue


def _join(plan: s_tir.Schedule, block: Block, readers: list[Block]) -> None:
    own = nest(plan, block)
    if is_transposing(own):
        return
    found = [nest(plan, reader) for reader in readers]
    size = prod(int(n) for n in own.written.buffer.shape)
    if any(own.reducing) and any(prod(reader.extents) < size for reader in found):
        # A product that was widened: TVM would cut it to what is read.
        return
    kept = 2 if reuses(own) else 1
    depth = min(min(_common(own, reader), _limit(reader, kept)) for reader in found)
    for other in found[1:]:
        depth = min(depth, _shared_loops(plan, found[0], other))
    if depth:
        plan.compute_at(block, found[0].loops[depth - 1])


def _common(own: Nest, reader: Nest) -> int:
    """Count the leading loops of `reader` that walk what `own` writes as its own loops do."""
    reads = [access for access in reader.reads if access.buffer.same_as(own.written.buffer)]
    if not reads:
        return 0
    shape = [int(size) for size in own.written.buffer.shape]
    depth = 0
    for loop, extent in enumerate(reader.extents):
        if loop >= len(shape) or reader.reducing[loop]:
            break
        step = prod(shape[loop + 1 :])
        if extent != shape[loop] or not all(_walks(one, loop, step, extent) for one in reads):
            break
        if loop >= len(own.extents) or own.extents[loop] != extent or own.reducing[loop]:
            break
        depth = loop + 1
    return depth


def _limit(reader: Nest, kept: int) -> int:
    """Return how deep stages may join: so many of the reader's own loops stay its own, for vectors."""
    wide = [loop for loop in reader.spatial if reader.extents[loop] > 1]
    return wide[-kept:][0] if wide else len(reader.loops)


def _walks(access: Access, loop: int, step: int, extent: int) -> bool:
    return extent == 1 or access.strides[loop] == step


def _shared_loops(plan: s_tir.Schedule, one: Nest, two: Nest) -> int:
    count = 0
    for mine, theirs in zip(one.loops, two.loops, strict=False):
        if not plan.get(mine).same_as(plan.get(theirs)):
            break
        count += 1
    return count

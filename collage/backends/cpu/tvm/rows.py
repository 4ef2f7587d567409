"""Stages over the same rows run row by row: a row remains in the first-level cache.

Softmax and layer norm are several passes over a row: maximum, powers, sum, quotient. Each stage moves under
the loops in common with all its readers: at these, a reader needs exactly the part written in the same
iteration, so no element is computed twice.
"""

from math import prod

from tvm import s_tir

from collage.backends.common.tvm.inline import is_transposing, reuses
from collage.backends.common.tvm.nest import Access, Block, Nest, nest, stages
from collage.backends.common.tvm.schedule_steps import optional_step


def join_rows(plan: s_tir.Schedule) -> None:
    """Move stages under the outer loops of their readers, the last stage first."""
    for block in reversed(stages(plan)):
        readers = plan.get_consumers(block)
        if readers:
            # TVM does not move a scan, a scatter or a result of the kernel.
            with optional_step(f"move {plan.get(block).name_hint}"):
                _join(plan, block, readers)


def _join(plan: s_tir.Schedule, block: Block, readers: list[Block]) -> None:
    own = nest(plan, block)
    if is_transposing(own):
        return
    nests = [nest(plan, reader) for reader in readers]
    size = prod(int(n) for n in own.written.buffer.shape)
    if any(own.reducing) and any(prod(reader.extents) < size for reader in nests):
        # A padded product: TVM would cut it to the extents of its readers.
        return
    own_loops = 2 if reuses(own) else 1
    depth = min(min(_common(own, reader), _limit(reader, own_loops)) for reader in nests)
    for nest_of_reader in nests[1:]:
        depth = min(depth, _shared_loops(plan, nests[0], nest_of_reader))
    if depth:
        plan.compute_at(block, nests[0].loops[depth - 1])


def _common(own: Nest, reader: Nest) -> int:
    """Count the leading loops of `reader` with the same steps over the result of `own` as its own loops."""
    reads = [access for access in reader.reads if access.buffer.same_as(own.written.buffer)]
    if not reads:
        return 0
    shape = [int(size) for size in own.written.buffer.shape]
    depth = 0
    for loop, extent in enumerate(reader.extents):
        if loop >= len(shape) or reader.reducing[loop]:
            break
        step = prod(shape[loop + 1 :])
        if extent != shape[loop] or not all(_walks(access, loop, step, extent) for access in reads):
            break
        if loop >= len(own.extents) or own.extents[loop] != extent or own.reducing[loop]:
            break
        depth = loop + 1
    return depth


def _limit(reader: Nest, own_loops: int) -> int:
    """Return the greatest depth of a join; `own_loops` inner loops remain the reader's, for vectors."""
    wide = [loop for loop in reader.spatial if reader.extents[loop] > 1]
    return wide[-own_loops:][0] if wide else len(reader.loops)


def _walks(access: Access, loop: int, step: int, extent: int) -> bool:
    return extent == 1 or access.strides[loop] == step


def _shared_loops(plan: s_tir.Schedule, first: Nest, second: Nest) -> int:
    count = 0
    for loop, other_loop in zip(first.loops, second.loops, strict=False):
        if not plan.get(loop).same_as(plan.get(other_loop)):
            break
        count += 1
    return count

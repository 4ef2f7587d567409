"""Parallel outer loops, for stages with enough work."""

from math import prod

from tvm import s_tir

from collage.backends.common.tvm.nest import Loop, Nest, nest, stages

SHARES = 64
"""Enough parallel iterations for any number of threads."""
MINIMUM_SHARED = 16384
"""Least iterations of a parallel stage; below, one thread is faster than a wake-up of more."""


def share_outer_loops(plan: s_tir.Schedule) -> None:
    """Run the outermost loops of every nest in parallel."""
    nests: list[list[Nest]] = []
    for block in stages(plan):
        stage = nest(plan, block)
        for group in nests:
            if plan.get(group[0].loops[0]).same_as(plan.get(stage.loops[0])):
                group.append(stage)
                break
        else:
            nests.append([stage])
    for group in nests:
        if max(prod(stage.extents) for stage in group) >= MINIMUM_SHARED:
            _share(plan, group)


def _share(plan: s_tir.Schedule, group: list[Nest]) -> None:
    """Fuse the common loops of all stages without reductions and run them in parallel."""
    first = group[0]
    loops: list[Loop] = []
    iterations = 1
    for level in range(min(len(stage.loops) for stage in group)):
        loop = plan.get(first.loops[level])
        if iterations >= SHARES or any(
            stage.reducing[level] or not plan.get(stage.loops[level]).same_as(loop)
            for stage in group
        ):
            break
        if str(loop.kind) != str(plan.get(first.loops[0]).kind):
            break
        loops.append(first.loops[level])
        iterations *= first.extents[level]
    if not loops:
        return
    plan.parallel(plan.fuse(*loops) if len(loops) > 1 else loops[0])

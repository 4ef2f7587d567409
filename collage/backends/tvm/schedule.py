"""A light schedule for kernels bound by memory traffic.

Element-wise and injective stages are inlined into their consumers (else into their producers), so
that a fused chain is one pass; the outer loops are shared by the threads. Vectorising the innermost
loop is left to LLVM, which may reassociate sums (see `target`). Whatever step TVM refuses is left
out: a schedule is never a reason to lose a kernel.
"""

from collections.abc import Callable
from contextlib import suppress

import tvm
from tvm import s_tir, tirx

from collage.backends.tvm.lower import SYMBOL


def schedule(function: tirx.PrimFunc, threads: int) -> tvm.IRModule:
    """Return a module that holds `function`, scheduled, under `lower.SYMBOL`."""
    named = function.with_attr("global_symbol", SYMBOL)
    module = tvm.IRModule({SYMBOL: named})
    try:
        plan = s_tir.Schedule(module)
    except Exception:
        return module
    _inline_all(plan)
    if threads > 1:
        _share_outer_loops(plan)
    return plan.mod


def _blocks(plan: s_tir.Schedule) -> list[s_tir.schedule.SBlockRV]:
    root = plan.get_sblock("root", func_name=SYMBOL)
    return list(plan.get_child_blocks(root))


def _inline_all(plan: s_tir.Schedule) -> None:
    for block in _blocks(plan):
        _attempt(plan.compute_inline, block)
    for block in reversed(_blocks(plan)):
        _attempt(plan.reverse_compute_inline, block)


def _share_outer_loops(plan: s_tir.Schedule) -> None:
    for block in _blocks(plan):
        loops = plan.get_loops(block)
        if loops:
            _attempt(plan.parallel, loops[0])


def _attempt(step: Callable[..., object], target: object) -> None:
    """Try one step; a refused step leaves the schedule as it was."""
    with suppress(Exception):
        step(target)

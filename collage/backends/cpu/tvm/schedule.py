"""A schedule by rules for kernels bound by memory traffic.

The rules run in order, each on the result of those before: widen odd products, compute injective
stages where they are read (`inline`), run stages over the same rows together (`rows`), give each
stage vectors (`elementwise`, `reductions`), share the outer loops among the threads (`threads`).
There is no search: a kernel is scheduled in milliseconds. Whatever TVM refuses is left out step by
step: a schedule is never a reason to lose a kernel.
"""

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx

from collage.backends.cpu.tvm.elementwise import schedule_elementwise
from collage.backends.cpu.tvm.inline import inline_stages
from collage.backends.cpu.tvm.lower import SYMBOL
from collage.backends.cpu.tvm.nest import Block, nest, stages
from collage.backends.cpu.tvm.reductions import clear_sums, pad_product, schedule_reduction
from collage.backends.cpu.tvm.rows import join_rows
from collage.backends.cpu.tvm.threads import share_outer_loops

Rule = Callable[[s_tir.Schedule], None]
StageRule = Callable[[s_tir.Schedule, Block], None]
OPAQUE = 8
"""TVM's kind of functions that its own passes must leave alone."""


def schedule(function: tirx.PrimFunc, threads: int) -> tvm.IRModule:
    """Return a module that holds `function`, scheduled, under `lower.SYMBOL`."""
    named = function.with_attr("global_symbol", SYMBOL).with_attr("op_pattern", OPAQUE)
    module = tvm.IRModule({SYMBOL: named})
    try:
        plan = s_tir.Schedule(module)
        plan.work_on(SYMBOL)
    except Exception:
        # The function is no nest of stages (a scatter, a sort): it runs as TVM wrote it.
        return module
    plan = _for_each_stage(plan, pad_product)
    plan = attempt(plan, inline_stages)
    plan = attempt(plan, join_rows)
    plan = _for_each_stage(plan, _schedule_stage)
    if threads > 1:
        plan = attempt(plan, share_outer_loops)
    return _for_each_stage(plan, clear_sums).mod


def attempt(plan: s_tir.Schedule, rule: Rule) -> s_tir.Schedule:
    """Apply one rule, all of it or, when TVM refuses a step, none of it."""
    trial = plan.copy()
    try:
        rule(trial)
    except Exception:
        # TVM's schedule errors share no base class with each other or with a rule's ValueError.
        return plan
    return trial


def _for_each_stage(plan: s_tir.Schedule, rule: StageRule) -> s_tir.Schedule:
    for name in [str(plan.get(block).name_hint) for block in stages(plan)]:
        plan = attempt(plan, lambda trial, name=name: rule(trial, trial.get_sblock(name)))  # type: ignore[misc]
    return plan


def _schedule_stage(plan: s_tir.Schedule, block: Block) -> None:
    if any(nest(plan, block).reducing):
        schedule_reduction(plan, block)
    else:
        schedule_elementwise(plan, block)

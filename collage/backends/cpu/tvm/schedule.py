"""A rule-based schedule for kernels bound by memory traffic.

The rules run in order: pad products with odd rows, inline injective stages (`inline`), run stages over the
same rows together (`rows`), vectorise each stage (`elementwise`, `reductions`), distribute the outer loops
over the threads (`threads`). There is no search: scheduling a kernel takes milliseconds. A step refused by
TVM is left out; the kernel remains.
"""

from collections.abc import Callable

import tvm
from tvm import s_tir, tirx

from collage.backends.common.tvm.inline import inline_stages
from collage.backends.common.tvm.lower import FUSED_SYMBOL
from collage.backends.common.tvm.nest import Block, nest, stages
from collage.backends.common.tvm.schedule_steps import attempt, optional_step
from collage.backends.common.tvm.tuned_schedules import OPAQUE
from collage.backends.cpu.tvm.elementwise import schedule_elementwise
from collage.backends.cpu.tvm.reductions import clear_sums, pad_product, schedule_reduction
from collage.backends.cpu.tvm.rows import join_rows
from collage.backends.cpu.tvm.threads import share_outer_loops

StageRule = Callable[[s_tir.Schedule, Block], None]


def schedule(function: tirx.PrimFunc, threads: int) -> tvm.IRModule:
    """Return a module with the scheduled `function` under `lower.SYMBOL`."""
    named = function.with_attr("global_symbol", FUSED_SYMBOL).with_attr("op_pattern", OPAQUE)
    module = tvm.IRModule({FUSED_SYMBOL: named})
    plan = None
    with optional_step("schedule a function without stages (a scatter, a sort)"):
        plan = s_tir.Schedule(module)
        plan.work_on(FUSED_SYMBOL)
    if plan is None:
        return module
    plan = _for_each_stage(plan, pad_product)
    plan = attempt(plan, inline_stages)
    plan = attempt(plan, join_rows)
    plan = _for_each_stage(plan, _schedule_stage)
    if threads > 1:
        plan = attempt(plan, share_outer_loops)
    return _for_each_stage(plan, clear_sums).mod


def _for_each_stage(plan: s_tir.Schedule, rule: StageRule) -> s_tir.Schedule:
    for name in [str(plan.get(block).name_hint) for block in stages(plan)]:
        plan = attempt(plan, lambda trial, name=name: rule(trial, trial.get_sblock(name)))  # type: ignore[misc]
    return plan


def _schedule_stage(plan: s_tir.Schedule, block: Block) -> None:
    if any(nest(plan, block).reducing):
        schedule_reduction(plan, block)
    else:
        schedule_elementwise(plan, block)

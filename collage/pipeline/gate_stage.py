"""The stage of complete plans: assembled, refined and judged by the gate.

`collage.verify` measures and decides, `Refinement` proposes further plans between its rounds.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.assemble import FunctionPlan
from collage.backends.nvidia.tensorrt.engine import ENGINES
from collage.errors import MeasureError
from collage.frontend import Function, Model
from collage.frontend.inputs import more_inputs
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.plans import WholePlans, kernel_seconds_by_position
from collage.pipeline.refinement import Refinement
from collage.pipeline.search_checkpoint import (
    CheckpointFile,
    SearchCheckpoint,
    select_remembered_plans,
)
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan
from collage.verify import BenchmarkTarget, profile_kernels
from collage.verify.accuracy_checker import AccuracyBudget
from collage.verify.accuracy_samples import MORE_SEEDS, write_outputs, write_samples
from collage.verify.decision import Decision, OriginalPlans
from collage.verify.gate import Gate
from collage.verify.plan_executable import PlanExecutable, function_signature
from collage.verify.reference_run import Samples

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GateStageResult:
    """Result of the stage.

    Attributes:
        decision: decision of the gate.
        search: search with in-context costs and all plans that were tried.
        plans: plans with their kernels.
        speed_factor: machine speed factor of the final round, included in the costs; default 1.
    """

    decision: Decision
    search: FunctionSearch
    plans: WholePlans
    speed_factor: float = 1.0


def refine_and_decide(
    model: Model,
    search: FunctionSearch,
    samples: Samples,
    *,
    originals: OriginalPlans,
    file: CheckpointFile,
    has_new_candidates: bool,
    context: CompileContext,
) -> GateStageResult:
    """Assemble the best plans of a search, refine them, and let the gate choose.

    Plans of an earlier run are compared again without refinement, unless tuning added candidates since.

    Args:
        model: original model.
        search: search of one function.
        samples: inputs and reference outputs of the function.
        originals: original-file plans.
        file: location of the search's checkpoint.
        has_new_candidates: whether tuning added candidates in this run.
        context: shared state of the compile.
    """
    plans = WholePlans(search, context)
    checkpoint = file.read()
    remembered = () if has_new_candidates else checkpoint.plans(search)
    executables = assemble_all(plans, remembered or search.plans)
    refinement = (
        Refinement(plans, 0.0, checkpoint.samples(search))
        if remembered
        else Refinement(plans, context.options.refine_s)
    )
    function = search.enumerated.function
    with gate_of(model, function, samples, context) as gate:
        decision = gate.decide(
            function,
            executables,
            samples.inputs,
            samples.expected,
            propose_plans=refinement.propose_plans,
            fallback_plans=lambda: [plans.assemble(plan) for plan in plans.fresh()],
            originals=originals,
        )
        best = select_remembered_plans(plans.named, decision.latencies, decision.finalists)
        file.write(
            SearchCheckpoint.of(
                search.lazy.gap_s, plans=best, samples=refinement.in_context.samples
            )
        )
    speed_factor = refinement.speed_factor(decision)
    return GateStageResult(decision, refinement.updated_search(speed_factor), plans, speed_factor)


@contextmanager
def gate_of(
    model: Model, function: Function, samples: Samples, context: CompileContext
) -> Iterator[Gate]:
    """Make the gate of one function, with its stage's progress and seconds."""
    budget = _error_budget(function, samples, context)
    with context.progress.stage("verify") as stage, context.seconds.of("verify"):

        def on_round(done: int, total: int) -> None:
            stage.total = stage.done + total - done + 1
            stage.advance(1)

        yield Gate(
            model=model.path,
            threads=context.threads,
            seconds_each=context.options.verify_s,
            work_dir=context.work_dir,
            on_round=on_round,
            budget=budget,
            samples=_further_samples(function, samples, context),
            device=context.options.target,
            engines=context.options.store_dir / ENGINES,
        )


def assemble_all(plans: WholePlans, selected: Sequence[NamedPlan]) -> list[PlanExecutable]:
    """Write the executables of the selected plans."""
    context, executables = plans.context, []
    with (
        context.seconds.of("assemble"),
        context.progress.stage("assemble", len(selected)) as stage,
    ):
        for plan in selected:
            executables.append(plans.assemble(plan))
            stage.advance(1)
    return executables


def profile_chosen(
    plan: FunctionPlan, decision: Decision, inputs: dict[str, np.ndarray], context: CompileContext
) -> dict[int, float]:
    """Time the kernels inside the executable that ships, by their position; views have no kernel.

    The seconds are scaled to the latency of the final round.
    """
    executable = decision.chosen
    signature = function_signature(plan.function, executable.kernel)
    target = BenchmarkTarget(
        executable.name, "executable", executable.path, signature, device=executable.device
    )
    with context.seconds.of("verify"):
        try:
            profile = profile_kernels(target, inputs, context.threads, context.work_dir)
        except MeasureError as error:
            # Only the report shows these seconds: the executable has passed its gate.
            log.debug("the kernels of %s are not timed: %s", executable.name, error)
            return {}
    speed_factor = decision.latency.seconds / profile.call_s
    return {
        position: speed_factor * seconds
        for position, seconds in kernel_seconds_by_position(plan, profile.kernels_s).items()
    }


def _error_budget(
    function: Function, samples: Samples, context: CompileContext
) -> AccuracyBudget | None:
    """Write the accuracy samples of plans in less than float32: the gate's inputs and further seeds.

    Without them, or with outputs that depend on random numbers, the error of a plan cannot be told.
    """
    options = context.options
    if not options.may_reduce or function.drawn_outputs:
        return None
    seeds = range(options.seed + 1, options.seed + 1 + MORE_SEEDS)
    further = [further_set.inputs for further_set in samples.further]
    input_sets = [samples.inputs, *further, *more_inputs(function, seeds)]
    folder = context.work_dir / f"accuracy-samples-{function.name}"
    write_samples(function, input_sets, folder)
    return AccuracyBudget(options.tolerance, folder)


def _further_samples(function: Function, samples: Samples, context: CompileContext) -> Path | None:
    """Write the sets that judge every plan, with the original's outputs; None where there are none."""
    if not samples.further:
        return None
    folder = context.work_dir / f"further-samples-{function.name}"
    write_samples(function, [further_set.inputs for further_set in samples.further], folder)
    write_outputs(function, [further_set.expected for further_set in samples.further], folder)
    return folder

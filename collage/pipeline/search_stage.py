"""Up to the search: import, inputs, candidates, and the search of one function with real measurements.

A search takes costs from the table first, then new ones. It does not care who measures: the worker
processes of this machine, or the Jobs of a cluster.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collage.cost import Cost
from collage.errors import ModelError
from collage.frontend import Function, Model
from collage.frontend.inputs import random_inputs
from collage.frontend.isolated_import import guarded_import
from collage.frontend.sensitivity import Sensitivity
from collage.measure.cache_flush import Sweep
from collage.measure.cost_key import launch_key
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import OnCost, SearchMeasurer, Work
from collage.options import Options
from collage.pipeline.compile_context import Session
from collage.pipeline.search_checkpoint import CheckpointFile, SearchCheckpoint
from collage.search.function_search import (
    Enumerated,
    FunctionSearch,
    enumerate_function,
    search_function,
)
from collage.search.graph_launches import without_graphs
from collage.search.reduced_precision import ErrorBudget, within_budget
from collage.verify.reference_run import Samples, sample

SENSITIVITY_S = 20.0
"""Seconds for finding what errors inside a function are at its outputs."""


def imported(path: Path, session: Session) -> Model:
    """Import the model with the shapes that the options bind."""
    options = session.options
    with session.progress.stage("import"), session.seconds.of("import"):
        return guarded_import(
            path,
            dims=options.dims,
            shapes=options.shapes,
            work_dir=session.work_dir,
            keep_half=options.device != "cpu",
        )


def sampled(model: Model, function: Function, session: Session) -> Samples:
    """Make inputs, and run the original model on them.

    Raises:
        ModelError: ONNX Runtime cannot run it within the limits of import, or it is in bfloat16 and for
            a CPU.
    """
    for value in (*function.graph.inputs, *function.graph.outputs):
        if function.type_of(value).dtype == "bfloat16" and session.options.device == "cpu":
            raise ModelError(
                f"{value!r} is bfloat16, for which only a GPU has kernels: add --device cuda"
            )
    with session.seconds.of("import"):
        return sample(model, function, session.options.seed, session.work_dir)


def enumerated_function(function: Function, session: Session) -> Enumerated:
    """List the candidates of a function and count them."""
    with session.progress.stage("enumerate"), session.seconds.of("enumerate"):
        enumerated = enumerate_function(
            function, session.compatible_backends, may_reduce=session.options.may_reduce
        )
    session.counts.enumerated += len(enumerated.candidates)
    session.counts.unique += len(enumerated.work)
    return enumerated


def local_measurer(
    function: Function, reference_dir: Path, session: Session, kernels: Path | None = None
) -> LocalMeasurer:
    """Make a measurer with worker processes on this machine; `kernels` as in `LocalMeasurer`."""
    return LocalMeasurer(
        [function],
        session.backends,
        session.table,
        session.environment,
        reference_dir=reference_dir,
        workers=session.options.workers,
        timeout_s=session.options.timeout_s,
        memory_bytes=session.options.memory_bytes,
        sweep=model_sweep(function, session.options.device),
        device=session.options.device,
        kernels=kernels,
    )


def search_with_measurements(
    enumerated: Enumerated, measurer: SearchMeasurer, session: Session
) -> tuple[FunctionSearch, CheckpointFile]:
    """Search with what the table knows and what is measured now; also return the search's mark.

    Where the mark says that the search has ended, only what it takes to have one plan is measured. The
    budget is one of measuring: waiting for machines is not in it. The measurer is closed.
    """
    options = session.options
    if not options.cuda_graphs:
        enumerated = replace(enumerated, problem=without_graphs(enumerated.problem))
    start = time.monotonic()
    measuring_s = 0.0
    with session.progress.stage("measure", None) as stage:

        def on_cost(_: Work, cost: Cost, cached: bool) -> None:
            stage.advance(1, cached=int(cached), invalid=int(cost.is_invalid))

        try:
            checkpoint = CheckpointFile.of(enumerated, session)
            gap_s = checkpoint.read().gap_s
            works = list(enumerated.work.values())
            recalled = dict(zip(enumerated.work, measurer.recall(works, on_cost), strict=True))
            judged = _JudgingMeasurer(measurer, enumerated, options.tolerance)
            search = search_function(
                enumerated,
                judged,
                {
                    key: judged.judge(enumerated.work[key], cost)
                    for key, cost in recalled.items()
                    if not cost.is_unknown
                },
                plans=options.end_to_end_plans,
                budget_s=options.measure_budget_s if gap_s is None else 0.0,
                clock=lambda: time.monotonic() - measurer.waited_s,
                on_cost=on_cost,
                batch=measurer.batch,
                errors=_allowed_errors(enumerated.function, options),
                launch_s=lambda: _launch_s(session),
            )
            measuring_s = judged.seconds
            if gap_s is None:
                checkpoint.write(SearchCheckpoint.of(search.lazy.gap_s))
            else:
                search = replace(search, lazy=replace(search.lazy, gap_s=gap_s))
        finally:
            measurer.close()
    session.seconds.stages["measure"] += measuring_s
    session.seconds.stages["search"] += time.monotonic() - start - measuring_s
    session.counts.add(measurer)
    return search, checkpoint


def _launch_s(session: Session) -> float:
    """Return the least that a call takes without CUDA graphs, as whoever measured has found."""
    table = session.table.within(session.environment)
    cost = table.get(launch_key(session.environment))
    return cost.seconds if cost else 0.0


def _allowed_errors(function: Function, options: Options) -> ErrorBudget | None:
    if not options.may_reduce:
        return None
    inputs = random_inputs(function, options.seed)
    level = 0.5 * options.tolerance
    return ErrorBudget(
        options.tolerance, Sensitivity(function, inputs, level, SENSITIVITY_S).of_region
    )


class _JudgingMeasurer:
    """Passes batches on, adds up the wall seconds, and refuses errors that are beyond all hope.

    The table keeps a cost with its error, so another tolerance measures nothing again.
    """

    def __init__(self, inner: SearchMeasurer, enumerated: Enumerated, tolerance: float) -> None:
        self.inner = inner
        self.tolerance = tolerance
        self.last = {enumerated.work[key] for key in enumerated.last}
        self.seconds = 0.0

    def measure(self, batch: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        start = time.monotonic()
        try:
            costs = self.inner.measure(batch, on_cost)
            return [self.judge(work, cost) for work, cost in zip(batch, costs, strict=True)]
        finally:
            self.seconds += time.monotonic() - start

    def judge(self, work: Work, cost: Cost) -> Cost:
        return within_budget(cost, self.tolerance, is_last=work in self.last)


def model_sweep(function: Function, device: str, cache_bytes: int | None = None) -> Sweep:
    """Return what is swept before the function's kernels are timed.

    Args:
        device: where they run; on a GPU it is the device's own cache, whatever the model.
        cache_bytes: as in `Sweep.of`.
    """
    return Sweep.of(footprint_bytes(function), cache_bytes) if device == "cpu" else Sweep(0)


def footprint_bytes(function: Function) -> int:
    """Bytes that one run of the model touches: the weights, and the activations that live at once.

    Executables reuse the memory of dead activations; twice the most that one node reads and writes
    stands for what is live. Kernels keep weights as they need them: padded, or transformed for Winograd's
    algorithm, 1.8 to 4 times as large. Twice the model's stand for these.
    """
    graph = function.graph
    weights = sum(value.nbytes for value in function.weights.values())
    activations = [
        sum(
            graph.types[value].size_bytes
            for value in {*node.inputs, *node.outputs} - graph.constants
            if value in graph.types
        )
        for node in graph.nodes
    ]
    return 2 * (weights + max(activations, default=0))

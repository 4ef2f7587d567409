"""The first stages: import, reference run, enumeration, and the search with measurements.

A search uses stored costs first, then new measurements, from worker processes of this machine or from Jobs
of a cluster.
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
from collage.search.enumeration import Enumerated, enumerate_function
from collage.search.function_search import FunctionSearch, search_function
from collage.search.graph_launches import without_graphs
from collage.search.reduced_precision import ErrorBudget, within_budget
from collage.verify.reference_run import Samples, sample

SENSITIVITY_S = 20.0
"""Time to estimate the sensitivity of outputs to errors inside a function, in seconds."""


def imported(path: Path, session: Session) -> Model:
    """Import the model with the shapes of the options."""
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
    """Search with stored and new costs; also return the location of the search's checkpoint.

    A search with a checkpoint measures only missing costs of its best plan. The budget covers measurements,
    not the wait for machines. The measurer is closed at the end.
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
    """Return the measured minimum time of a call without CUDA graphs, in seconds."""
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
    """Measures batches, adds up the wall seconds, and rejects costs with errors far beyond the tolerance.

    The cost table keeps the error of a cost, so another tolerance repeats no measurement.
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
    """Return the cache flush before each timing of the function's kernels.

    Args:
        function: function of the kernels.
        device: device of the kernels; the flush on a GPU does not depend on the model.
        cache_bytes: size of the last-level cache, in bytes; None: this machine's (`Sweep.of`).
    """
    return Sweep.of(footprint_bytes(function), cache_bytes) if device == "cpu" else Sweep(0)


def footprint_bytes(function: Function) -> int:
    """Estimate the memory of one run in bytes: weights and live activations.

    Executables reuse the memory of dead activations; twice the largest inputs and outputs of one node
    approximate the live ones. Kernels pad weights, or transform them for Winograd's algorithm to 1.8 to 4
    times the size; twice the model's weights approximate these.
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

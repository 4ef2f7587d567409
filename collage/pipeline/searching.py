"""The search of one function with real measurements: costs from the table first, then new ones."""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from collage.cost import Cost
from collage.errors import StoreError
from collage.frontend import Function
from collage.frontend.region import region_digest
from collage.measure.local import LocalMeasurer
from collage.measure.work import OnCost, Work
from collage.pipeline.session import Session
from collage.search.function import Enumerated, FunctionSearch, search_function


def measured_search(
    function: Function, enumerated: Enumerated, reference_dir: Path, session: Session
) -> tuple[FunctionSearch, Path]:
    """Search with what the table knows and what is measured now; also return the search's mark.

    The mark is a file that says: this search ended with this budget, and its costs are in the table.
    Where it exists, only what it takes to have one plan is measured.
    """
    options = session.options
    start = time.monotonic()
    measuring_s = 0.0
    with session.progress.stage("measure", None) as stage:

        def on_cost(_: Work, cost: Cost, cached: bool) -> None:
            stage.advance(1, cached=int(cached), invalid=int(cost.is_invalid))

        measurer = LocalMeasurer(
            [function],
            session.backends,
            session.table,
            session.environment,
            reference_dir=reference_dir,
            workers=options.workers,
            timeout_s=options.timeout_s,
            memory_bytes=options.memory_bytes,
            footprint_bytes=_footprint_bytes(function),
        )
        try:
            mark = _mark(function, enumerated, session)
            works = list(enumerated.work.values())
            known = dict(zip(enumerated.work, measurer.recall(works, on_cost), strict=True))
            timed = _TimedMeasurer(measurer)
            search = search_function(
                enumerated,
                timed,
                {key: cost for key, cost in known.items() if not cost.is_unknown},
                plans=options.end_to_end_plans,
                budget_s=0.0 if mark.exists() else options.measure_budget_s,
                clock=time.monotonic,
                on_cost=on_cost,
            )
            measuring_s = timed.seconds
            _make_mark(mark)
        finally:
            measurer.close()
    session.seconds.stages["measure"] += measuring_s
    session.seconds.stages["search"] += time.monotonic() - start - measuring_s
    session.counts.measured += measurer.measured
    session.counts.cached += measurer.cached
    session.counts.invalid += measurer.invalid
    return search, mark


def _mark(function: Function, enumerated: Enumerated, session: Session) -> Path:
    """Name the mark.

    A search under a time budget could go on a little in every run; what is finished stays so, until
    the function, a backend, the candidates that its rule lists, the environment or the budget changes.
    """
    whole = (1 << len(function.graph)) - 1
    facts = [
        region_digest(function, whole),
        *(backend.identity for backend in session.backends),
        *sorted(map(str, enumerated.work)),
        session.environment.digest,
        str(float(session.options.measure_budget_s)),
    ]
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return session.options.store_dir / "searches" / name


def _make_mark(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise StoreError(f"the store cannot be written: {error.strerror}: {file}") from error


class _TimedMeasurer:
    """Passes batches on and adds up the wall seconds."""

    def __init__(self, inner: LocalMeasurer) -> None:
        self.inner = inner
        self.seconds = 0.0

    def measure(self, batch: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        start = time.monotonic()
        try:
            return self.inner.measure(batch, on_cost)
        finally:
            self.seconds += time.monotonic() - start


def _footprint_bytes(function: Function) -> int:
    """Bytes that one run of the model touches: the weights, and the activations that live at once.

    Executables reuse the memory of dead activations; twice the most that one node reads and writes
    stands for what is live.
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
    return weights + 2 * max(activations, default=0)

"""Where a request is worked on: this machine, or a cluster (`collage.cluster`).

A site does four things, each of which can be repeated after any crash: what was measured is in the
store, what was searched has its mark there, and a bundle is published whole or not at all.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from collage.backends.registry import available_backends
from collage.errors import OptionError, SearchError
from collage.frontend import Function, Model
from collage.measure.environment import last_level_cache_bytes, this_environment
from collage.measure.measurement_request import SearchMeasurer
from collage.options import DeviceName, Options
from collage.pipeline.compile import compile_model
from collage.pipeline.compile_context import Session, open_session
from collage.pipeline.original_plan import OriginalFile, without_plans
from collage.pipeline.request import (
    CompileRequest,
    CompileResult,
    FunctionFacts,
    NodeFacts,
    PlanFacts,
    SearchFacts,
    fetch_model,
)
from collage.pipeline.results import claim_result, read_result
from collage.pipeline.search_stage import (
    enumerated_function,
    imported,
    local_measurer,
    measured_search,
    sampled,
)
from collage.report.data import Summary
from collage.report.terminal import Progress
from collage.runtime.bundle_folder import MANIFEST
from collage.search.function_search import FunctionSearch
from collage.store import open_store
from collage.store.aliases import AliasSigning
from collage.store.blobs import digest_of
from collage.store.bundle_statements import BundleSigning
from collage.store.bundles import publish_bundle
from collage.store.manifests import bundle_files
from collage.store.statement import SignedModel

OpenMeasurer = Callable[[Model, Function, Session], SearchMeasurer]
"""Makes the measurer of one function's search."""


class Site(Protocol):
    """Works on requests. Methods raise CollageError; what they did before stays in the store."""

    def describe(self, request: CompileRequest) -> NodeFacts:
        """Return what the node that will serve says of itself."""
        ...

    def functions(self, request: CompileRequest) -> tuple[str, ...]:
        """Name the functions of the model: each is searched on its own."""
        ...

    def search(self, request: CompileRequest, function: str, progress: Progress) -> SearchFacts:
        """Measure, through the store, what the best plan of one function depends on."""
        ...

    def finish(self, request: CompileRequest, progress: Progress) -> CompileResult:
        """Assemble, compare whole, pass the gate and publish the bundle, on the node that serves."""
        ...


class LocalSite:
    """A site that is this machine."""

    def __init__(self, store: str, cache_dir: Path, signing: AliasSigning | None = None) -> None:
        """Name the shared store's address, the folder of the local one, and what signs bundles."""
        self._store = store
        self._cache_dir = cache_dir
        self._signing = signing

    def describe(self, request: CompileRequest) -> NodeFacts:
        return node_facts(request)

    def functions(self, request: CompileRequest) -> tuple[str, ...]:
        return tuple("main" if not n else f"main_{n}" for n in range(set_count(request)))

    def search(self, request: CompileRequest, function: str, progress: Progress) -> SearchFacts:
        def open_measurer(model: Model, one: Function, session: Session) -> SearchMeasurer:
            return local_measurer(one, sampled(model, one, session).reference_dir, session)

        with (
            self._model(request) as path,
            open_session(self._options(request), progress) as session,
        ):
            return search_part(path, function, session, open_measurer)

    def finish(self, request: CompileRequest, progress: Progress) -> CompileResult:
        store, facts = open_store(self._store), node_facts(request)
        if known := read_result(store, request, facts):
            return known
        with self._model(request) as path:
            output = path.parent / "bundle"
            summary = compile_model(path, self._options(request), output, progress)
            manifest = (output / MANIFEST).read_bytes()
            made = _result(summary, digest_of(manifest), bundle_files(manifest)["report.html"])
            counts = claim_result(store, request, facts, made)
            if counts == made:
                publish_bundle(store, output, signing=self._bundle_signing(request))
            return counts

    def _bundle_signing(self, request: CompileRequest) -> BundleSigning | None:
        if self._signing is None:
            return None
        return BundleSigning(
            self._signing, SignedModel.of_registry(request.name, request=request.digest)
        )

    def _options(self, request: CompileRequest) -> Options:
        return request.compile_options(self._store, self._cache_dir)

    @contextmanager
    def _model(self, request: CompileRequest) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="collage-request-") as folder:
            yield fetch_model(open_store(self._store, writes=False), request, Path(folder))


def check_device(environment: str, here: DeviceName, wanted: DeviceName | None) -> None:
    """Raise OptionError unless an environment measures on the device that is wanted, if one is."""
    if wanted in (None, here):
        return
    advice = (
        "name one of a pool with GPUs, or describe it with device: cuda and gpuResource: nvidia.com/gpu"
        if wanted == "cuda"
        else f"leave the device out, or describe an environment of the same nodes with device: {wanted}"
    )
    raise OptionError(
        f"the request is for {wanted}, and the environment {environment!r} measures on {here}: {advice}"
    )


def set_count(request: CompileRequest) -> int:
    """Count the shape sets, each of which is a function."""
    return max(1, len(request.options.shapes))


def node_facts(request: CompileRequest) -> NodeFacts:
    """Say what this machine is for a request.

    Raises:
        OptionError: an unknown backend, or one that cannot be used here.
        MeasureError: the request is for a GPU, and none can be used here.
    """
    environment = this_environment(request.threads, request.device)
    backends = available_backends(request.options.backends, request.device)
    return NodeFacts(
        environment=environment,
        cache_bytes=last_level_cache_bytes(),
        backends={backend.name: backend.identity for backend in backends},
    )


def search_part(
    path: Path, function: str, session: Session, open_measurer: OpenMeasurer
) -> SearchFacts:
    """Search one function of the model at `path`.

    Where no plan of regions computes its numbers and the original file can ship, no plan is found.

    Raises:
        OptionError: the model has no such function.
        CollageError: what the stages raise.
    """
    start = time.monotonic()
    model = imported(path, session)
    found = next((one for one in model.functions if one.name == function), None)
    if found is None:
        known = ", ".join(one.name for one in model.functions)
        raise OptionError(f"{path.name} has no function {function!r}, only {known}")
    enumerated = enumerated_function(found, session)
    try:
        search, _ = measured_search(enumerated, open_measurer(model, found, session), session)
    except SearchError:
        if not OriginalFile(model, found, session).plans.baselines:
            raise
        search = without_plans(enumerated)
    return _search_facts(search, session, time.monotonic() - start)


def _search_facts(search: FunctionSearch, session: Session, seconds: float) -> SearchFacts:
    counts = session.counts
    plans = tuple(
        PlanFacts(
            name=one.name,
            predicted_s=one.plan.predicted_s,
            regions=len(one.plan.options),
            backends=tuple(sorted(set(one.plan.backends))),
        )
        for one in search.plans
    )
    return SearchFacts(
        function=search.enumerated.function.name,
        plans=plans,
        gap_s=search.lazy.gap_s,
        enumerated=counts.enumerated,
        unique=counts.unique,
        measured=counts.measured,
        cached=counts.cached,
        invalid=counts.invalid,
        seconds=seconds,
    )


def _result(summary: Summary, bundle: str, report: str) -> CompileResult:
    return CompileResult(
        bundle=bundle,
        report=report,
        reason=summary.gate.reason,
        speedup=summary.speedup_over_best,
        functions=tuple(
            FunctionFacts(
                function=one.function,
                verdict=one.verdict,
                predicted_s=one.predicted_s,
                latency_s={"collage": one.latency.collage_s, **one.latency.baselines},
            )
            for one in summary.functions
        ),
        plan=tuple(f"{len(region.nodes)} nodes on {region.backend}" for region in summary.plan),
        measured=summary.candidates.measured,
        cached=summary.candidates.cached,
        invalid=summary.candidates.invalid,
        seconds=summary.seconds.model_dump(by_alias=True),
    )

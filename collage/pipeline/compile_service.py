"""Compile services: a request is compiled on this machine or on a cluster (`collage.cluster`).

A service has four steps. Each can be repeated after any crash: costs are in the store, a finished search has
its checkpoint there, and a bundle is published as a whole or not at all.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from collage.backends.registry import available_backends, known_backends
from collage.entries import ModelEntry, bundle_functions, entry_functions, entry_of
from collage.errors import OptionError, SearchError
from collage.frontend import Function, Model
from collage.frontend.original_interface import read_interface
from collage.measure.environment import last_level_cache_bytes, this_environment
from collage.measure.measurement_request import SearchMeasurer
from collage.options import DeviceName, Options
from collage.pipeline.bodies import BodyPartitioner
from collage.pipeline.compile import compile_model
from collage.pipeline.compile_context import CompileContext, open_compile_context
from collage.pipeline.original_bundle import require_original_allowed, unlike_executable
from collage.pipeline.original_plan import OriginalFile, without_plans
from collage.pipeline.request import (
    CompileRequest,
    CompileResult,
    FunctionCompileResult,
    NodeInformation,
    PlanPrediction,
    SearchResult,
    fetch_models,
)
from collage.pipeline.request_samples import fetch_samples
from collage.pipeline.results import claim_result, read_result
from collage.pipeline.search_stage import (
    enumerated_function,
    imported,
    local_measurer,
    sampled,
    search_with_measurements,
)
from collage.report.progress import Progress
from collage.report.summary import Summary
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.target import Target
from collage.search.function_search import FunctionSearch
from collage.store import open_store
from collage.store.aliases import AliasSigning
from collage.store.blobs import digest_of
from collage.store.bundle_statements import BundleSigning
from collage.store.bundles import publish_bundle
from collage.store.manifests import bundle_files
from collage.store.statement import SignedModel

OpenMeasurer = Callable[[Model, Function, CompileContext], SearchMeasurer]
"""Factory of the measurer for one function's search; searches the bodies of its control flow before."""


class CompileService(Protocol):
    """Compiles requests. Methods raise CollageError; earlier results stay in the store."""

    def probe(self, request: CompileRequest) -> NodeInformation:
        """Return the information about the target node."""
        ...

    def functions(self, request: CompileRequest) -> tuple[str, ...]:
        """Return the names of the functions that have a search each.

        A model with text, sequences or maps at its border has none: its original runs as a whole.

        Raises:
            ModelError: the options forbid that an original runs.
        """
        ...

    def search(self, request: CompileRequest, function: str, progress: Progress) -> SearchResult:
        """Search one function; measured costs go through the store."""
        ...

    def finish(self, request: CompileRequest, progress: Progress) -> CompileResult:
        """Build the bundle on the target node: complete plans, gate and publication."""
        ...


class LocalCompileService:
    """Compile service of this machine."""

    def __init__(self, store: str, cache_dir: Path, signing: AliasSigning | None = None) -> None:
        """Configure the service.

        Args:
            store: address of the shared store.
            cache_dir: folder of the local store.
            signing: key of bundles; None: no signature.
        """
        self._store = store
        self._cache_dir = cache_dir
        self._signing = signing

    def probe(self, request: CompileRequest) -> NodeInformation:
        return node_information(request)

    def functions(self, request: CompileRequest) -> tuple[str, ...]:
        with self._models(request) as entries:
            return requested_functions(request, entries, self._options(request))

    def search(self, request: CompileRequest, function: str, progress: Progress) -> SearchResult:
        def open_measurer(
            model: Model, searched: Function, context: CompileContext
        ) -> SearchMeasurer:
            reference_dir = sampled(model, searched, context).reference_dir
            BodyPartitioner(model, context).partition(searched, reference_dir)
            return local_measurer(searched, reference_dir, context)

        with (
            self._models(request) as entries,
            open_compile_context(self._options(request), progress) as context,
        ):
            return search_model_function(entries, function, context, open_measurer)

    def finish(self, request: CompileRequest, progress: Progress) -> CompileResult:
        store, facts = open_store(self._store), node_information(request)
        if recorded := read_result(store, request, facts):
            return recorded
        with (
            self._models(request) as entries,
            tempfile.TemporaryDirectory(prefix="collage-bundle-") as folder,
        ):
            output = Path(folder) / "bundle"
            summary = compile_model(entries, self._options(request), output, progress)
            manifest = (output / MANIFEST).read_bytes()
            result = _result(summary, digest_of(manifest), bundle_files(manifest)["report.html"])
            published = claim_result(store, request, facts, result)
            if published == result:
                publish_bundle(store, output, signing=self._bundle_signing(request))
            return published

    def _bundle_signing(self, request: CompileRequest) -> BundleSigning | None:
        if self._signing is None:
            return None
        return BundleSigning(
            self._signing, SignedModel.of_registry(request.name, request=request.digest)
        )

    def _options(self, request: CompileRequest) -> Options:
        samples = fetch_samples(open_store(self._store, writes=False), request)
        return request.compile_options(self._store, self._cache_dir, samples)

    @contextmanager
    def _models(self, request: CompileRequest) -> Iterator[tuple[ModelEntry, ...]]:
        with tempfile.TemporaryDirectory(prefix="collage-request-") as folder:
            yield fetch_models(open_store(self._store, writes=False), request, Path(folder))


def check_device(environment: str, measured_on: DeviceName, requested: DeviceName | None) -> None:
    """Raise OptionError where a device is requested and the environment measures on another."""
    if requested in (None, measured_on):
        return
    advice = (
        "name one of a pool with GPUs, or define it with device: cuda and gpuResource: nvidia.com/gpu"
        if Target(requested).is_gpu
        else f"leave the device out, or define an environment of the same nodes with device: {requested}"
    )
    raise OptionError(
        f"the request is for {requested}, and the environment {environment!r} measures on "
        f"{measured_on}: {advice}"
    )


def node_information(request: CompileRequest) -> NodeInformation:
    """Return the information about this machine for a request.

    Raises:
        OptionError: a backend is unknown or not available here.
        MeasureError: the request is for a GPU, and none is available here.
    """
    environment = this_environment(request.threads, request.target)
    backends = available_backends(request.options.backends, request.device)
    return NodeInformation(
        environment=environment,
        cache_bytes=last_level_cache_bytes(),
        backends={backend.name: backend.identity for backend in backends},
    )


def requested_functions(
    request: CompileRequest, entries: Sequence[ModelEntry], options: Options
) -> tuple[str, ...]:
    """Return the names of a request's functions, with its options; each has a search of its own.

    Args:
        request: the request.
        entries: its entries, with their files.
        options: its options.

    Raises:
        OptionError: two functions have one name, or an option does not name its entry.
        ModelError: a file is no model, or no executable can run it and the options forbid its original.
    """
    names = [entry.name for entry in entries]
    bundle_functions(options, names)
    backends = [b.name for b in known_backends(request.options.backends, request.device)]
    functions: list[str] = []
    for entry in entries:
        if reason := unlike_executable(read_interface(entry.path)):
            require_original_allowed(f"the entry {entry.name!r}", reason, options, backends)
        else:
            functions += entry_functions(options, entry.name, names)
    return tuple(functions)


def import_model_of(
    function: str, entries: Sequence[ModelEntry], context: CompileContext
) -> tuple[Model, Function]:
    """Import the entry of a function alone; return its model and the function.

    Raises:
        OptionError: no entry has such a function.
        CollageError: the import fails.
    """
    names = [entry.name for entry in entries]
    entry = entry_of(function, entries, context.options)
    model = imported(entry.path, context, entry=entry.name, entries=names)
    return model, next(found for found in model.functions if found.name == function)


def search_model_function(
    entries: Sequence[ModelEntry],
    function: str,
    context: CompileContext,
    open_measurer: OpenMeasurer,
    *,
    assembles_bodies: bool = True,
) -> SearchResult:
    """Search one function of the entries' models.

    The result has no plan if no plan of regions computes its numbers and the original file can ship.

    Args:
        entries: the entries.
        function: name of the function.
        context: shared state of the compile.
        open_measurer: factory of the measurer.
        assembles_bodies: False where only the machine that builds the bundle has kernels that drive bodies;
            the result has no plan if nothing else covers the function's control flow.

    Raises:
        OptionError: no entry has such a function.
        CollageError: a stage fails.
    """
    start = time.monotonic()
    model, searched = import_model_of(function, entries, context)
    measurer = open_measurer(model, searched, context)
    try:
        enumerated = enumerated_function(searched, context)
    except SearchError:
        if assembles_bodies or context.options.target.is_gpu or not searched.bodies:
            raise
        return _search_result(function, context, time.monotonic() - start)
    try:
        search, _ = search_with_measurements(enumerated, measurer, context)
    except SearchError:
        if not OriginalFile(model, searched, context).plans.baselines:
            raise
        search = without_plans(enumerated)
    return _search_result(function, context, time.monotonic() - start, search)


def _search_result(
    function: str, context: CompileContext, seconds: float, search: FunctionSearch | None = None
) -> SearchResult:
    counts = context.counts
    plans = tuple(
        PlanPrediction(
            name=plan.name,
            predicted_s=plan.plan.predicted_s,
            regions=len(plan.plan.options),
            backends=tuple(sorted(set(plan.plan.backends))),
        )
        for plan in (search.plans if search else ())
    )
    return SearchResult(
        function=function,
        plans=plans,
        gap_s=search.lazy.gap_s if search else 0.0,
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
            FunctionCompileResult(
                function=function.function,
                verdict=function.verdict,
                predicted_s=function.predicted_s,
                latency_s={"collage": function.latency.collage_s, **function.latency.baselines},
            )
            for function in summary.functions
        ),
        plan=tuple(f"{len(region.nodes)} nodes on {region.backend}" for region in summary.plan),
        measured=summary.candidates.measured,
        cached=summary.candidates.cached,
        invalid=summary.candidates.invalid,
        seconds=summary.seconds.model_dump(by_alias=True),
    )

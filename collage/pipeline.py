"""The stages in order, as plain functions: what the command line, a flow or a test calls.

import, enumerate, measure and search (in rounds), assemble and compare whole, gate, bundle.
Every stage is idempotent: costs live in the store under content keys, so whatever interrupts a
compile, the next one repeats no measurement.
"""

import errno
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from collage.assemble import FunctionPlan, PlannedKernel, assemble, kernel_symbol
from collage.backends.base import Backend, Kernel, PluginKernel
from collage.backends.registry import available_backends
from collage.bundle.publish import Facts, Published, publish
from collage.cost import (
    Cost,
    CostKey,
    Costs,
    CostTable,
    Environment,
    SharedCostTable,
    cost_key,
)
from collage.errors import (
    BackendError,
    CollageError,
    InputError,
    MeasureError,
    OptionError,
    StoreError,
)
from collage.frontend import Function, Model, import_model
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.frontend.region import region_digest, region_values
from collage.measure.environment import this_environment
from collage.measure.local import LocalMeasurer
from collage.measure.peaks import machine_peaks
from collage.measure.work import OnCost, Work
from collage.options import Options
from collage.report.build import FunctionResult, Run, build_report
from collage.report.data import CandidateCounts, Summary
from collage.report.html import render_html
from collage.report.terminal import Progress
from collage.rules.rule import HOST
from collage.runtime.blob import unpack
from collage.runtime.plugin import library_names
from collage.search.function import (
    Enumerated,
    FunctionSearch,
    NamedPlan,
    enumerate_function,
    search_function,
)
from collage.search.problem import Plan
from collage.store import open_store
from collage.store.folder import check_output
from collage.store.scratch import scratch_folder
from collage.verify import Contender, Latency, compare_latency, profile_kernels
from collage.verify.gate import Decision, Gate, PlanExecutable, original_outputs

KNOWN_PLANS = 2
"""Plans that are assembled and compared again although an earlier run measured them whole."""

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

STAGES = ("import", "enumerate", "measure", "search", "assemble", "verify")


@dataclass
class Seconds:
    """Wall seconds of each stage, summed over the functions."""

    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages[stage] += time.monotonic() - start


@dataclass
class Counts:
    """How many candidates the search met; `unique` counts structurally different ones."""

    enumerated: int = 0
    unique: int = 0
    measured: int = 0
    cached: int = 0
    invalid: int = 0


@dataclass(frozen=True)
class Compiled:
    """One function after all stages."""

    search: FunctionSearch
    chosen: NamedPlan
    kernels: FunctionPlan
    published: Published
    measured_s: Mapping[int, float]
    """Seconds of the kernels inside the executable, by their position in the plan."""


@dataclass
class Session:
    """What the stages of one compile share."""

    options: Options
    backends: Sequence[Backend]
    environment: Environment
    table: Costs
    progress: Progress
    work_dir: Path
    seconds: Seconds = field(default_factory=Seconds)
    counts: Counts = field(default_factory=Counts)

    @property
    def threads(self) -> int:
        return self.environment.threads


def compile_model(
    path: Path, options: Options, output: Path, progress: Progress | None = None
) -> Summary:
    """Compile the model at `path` into the bundle folder `output`.

    Raises:
        CollageError: see `collage.errors`; nothing is published then.
    """
    check_output(output)
    backends = available_backends(options.backends)
    if not backends:
        raise OptionError("no backend is available; `collage backends` says why")
    environment = this_environment(options.thread_count)
    with _work_dir(options.store_dir) as work_dir:
        session = Session(
            options,
            backends,
            environment,
            open_costs(options),
            progress or Progress(quiet=True),
            work_dir,
        )
        try:
            summary = _compile(path, output, session)
        except BaseException as error:
            if not isinstance(error, StoreError):  # else the store would be waited for once more
                session.table.flush()
            raise
        session.table.flush()
        return summary


def open_costs(options: Options) -> Costs:
    """Open the table of costs: the local one, or the one that machines share through a store.

    Raises:
        OptionError: the store's address makes no sense.
        StoreError: the store does not answer.
    """
    local = CostTable(options.store_dir)
    if options.store is None:
        return local
    return SharedCostTable(open_store(options.store), local, time.monotonic)


@contextmanager
def _work_dir(store: Path) -> Iterator[Path]:
    """Make a folder for this compile; a disk that fills up while it is used is a StoreError too."""
    made = False
    try:
        with scratch_folder(store / "tmp", "compile-") as folder:
            made = True
            yield folder
    except OSError as error:
        if made and error.errno not in FULL_DISK:
            raise
        raise StoreError(
            f"the store {store} cannot be written: {error.strerror}; free space there or choose "
            "another folder with --cache-dir"
        ) from error


def _compile(path: Path, output: Path, session: Session) -> Summary:
    with session.progress.stage("import"), session.seconds.of("import"):
        model = import_model(
            path,
            dims=session.options.dims,
            shapes=session.options.shapes,
            work_dir=session.work_dir,
        )
    compiled = [_compile_function(model, function, session) for function in model.functions]
    executable = _final_executable(compiled, session)
    published = [one.published for one in compiled]
    facts = Facts(
        model,
        session.threads,
        session.environment.digest,
        session.options.seed,
        _libraries(one.kernels for one in compiled),
    )
    run = Run(
        model,
        [backend.name for backend in session.backends],
        session.environment,
        CandidateCounts(**asdict(session.counts)),
        session.seconds.stages,
        output,
        machine_peaks(
            session.environment, session.options.store_dir, again=session.counts.measured > 0
        ),
    )
    results = [
        FunctionResult(one.search, one.chosen, one.published.decision, one.measured_s)
        for one in compiled
    ]
    report = build_report(run, results)
    texts = {
        "plan.json": json.dumps([region.model_dump() for region in report.summary.plan], indent=1),
        "summary.json": report.summary.to_json(),
        "report.json": report.to_json(),
        "report.html": render_html(report),
    }
    publish(output, executable, published, facts, texts)
    return report.summary


def _compile_function(model: Model, function: Function, session: Session) -> Compiled:
    options = session.options
    with session.seconds.of("import"):
        inputs = random_inputs(function, options.seed)
        reference_dir = session.work_dir / f"reference-{function.name}"
        values = reference_values(function, inputs)
        save_reference(values, reference_dir)
        expected = original_outputs(model.path, function, inputs)
        del values
    with session.progress.stage("enumerate"), session.seconds.of("enumerate"):
        enumerated = enumerate_function(function, session.backends)
    session.counts.enumerated += len(enumerated.candidates)
    session.counts.unique += len(enumerated.work)
    search = _search(function, enumerated, reference_dir, session)
    search = replace(search, plans=_still_hopeful(search.plans, session))
    with session.seconds.of("assemble"):
        executables, kernels = _assemble_all(search, session)
    with session.progress.stage("verify") as stage, session.seconds.of("verify"):

        def on_round(done: int, total: int) -> None:
            stage.total = stage.done + total - done + 1
            stage.advance(1)

        gate = Gate(model.path, session.threads, options.verify_s, session.work_dir, on_round)
        decision = gate.decide(function, executables, inputs, expected)
    _remember(search.plans, decision, session)
    chosen = next(plan for plan in search.plans if plan.name == decision.chosen.name)
    published = Published(function, decision, inputs, expected)
    with session.seconds.of("verify"):
        measured_s = _kernel_seconds(kernels[chosen.name], decision.chosen, inputs, session)
    return Compiled(search, chosen, kernels[chosen.name], published, measured_s)


def _kernel_seconds(
    plan: FunctionPlan,
    executable: PlanExecutable,
    inputs: dict[str, np.ndarray],
    session: Session,
) -> dict[int, float]:
    """Time the kernels inside the executable that ships; views have no kernel."""
    contender = Contender(executable.name, "executable", executable.path, plan.function.name)
    try:
        found = profile_kernels(contender, inputs, session.threads, session.work_dir)
    except MeasureError:
        return {}  # facts for the report alone: the executable has passed its gate without them
    symbols = {
        position: kernel_symbol(plan.function.name, position, planned.backend)
        for position, planned in enumerate(plan.kernels)
    }
    return {position: found[symbol] for position, symbol in symbols.items() if symbol in found}


def _search(
    function: Function, enumerated: Enumerated, reference_dir: Path, session: Session
) -> FunctionSearch:
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
            finished = _finished_mark(function, enumerated, session)
            works = list(enumerated.work.values())
            known = dict(zip(enumerated.work, measurer.recall(works, on_cost), strict=True))
            timed = _TimedMeasurer(measurer)
            search = search_function(
                enumerated,
                timed,
                {key: cost for key, cost in known.items() if not cost.is_unknown},
                plans=options.end_to_end_plans,
                budget_s=0.0 if finished.exists() else options.measure_budget_s,
                clock=time.monotonic,
                on_cost=on_cost,
            )
            measuring_s = timed.seconds
            _make_mark(finished)
        finally:
            measurer.close()
    session.seconds.stages["measure"] += measuring_s
    session.seconds.stages["search"] += time.monotonic() - start - measuring_s
    session.counts.measured += measurer.measured
    session.counts.cached += measurer.cached
    session.counts.invalid += measurer.invalid
    return search


def _finished_mark(function: Function, enumerated: Enumerated, session: Session) -> Path:
    """The file that says: this search ended with this budget, and its costs are in the table.

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


def _still_hopeful(plans: Sequence[NamedPlan], session: Session) -> tuple[NamedPlan, ...]:
    """Of the plans that an earlier run measured whole, keep the best; new ones all stay.

    The best plan of one toolchain stays too: it ships when the gate refuses the mix.
    """
    found = {plan.name: session.table.get(_plan_key(plan, session)) for plan in plans}
    known = {name: cost.seconds for name, cost in found.items() if cost is not None}
    best = set(sorted(known, key=lambda name: known[name])[:KNOWN_PLANS])
    singles = [plan.name for plan in plans if plan.single]
    best.add(min(singles, key=lambda name: known.get(name, math.inf), default=""))
    return tuple(plan for plan in plans if plan.name in best or plan.name not in known)


def _remember(plans: Sequence[NamedPlan], decision: Decision, session: Session) -> None:
    """Keep the latencies of whole plans, so that the next run compares the best ones only."""
    for plan in plans:
        found = decision.latencies.get(plan.name)
        if found is not None and math.isfinite(found.seconds):
            cost = Cost(found.seconds, found.low, found.high)
            session.table.put(_plan_key(plan, session), cost)


def _plan_key(named: NamedPlan, session: Session) -> CostKey:
    options = [[hex(option.nodes), option.key] for option in named.plan.options]
    return cost_key(json.dumps(["plan", *options]), "", session.environment)


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


def _assemble_all(
    search: FunctionSearch, session: Session
) -> tuple[list[PlanExecutable], dict[str, FunctionPlan]]:
    function = search.enumerated.function
    cache: dict[Hashable, Kernel] = {}
    executables, plans = [], {}
    with session.progress.stage("assemble", len(search.plans)) as stage:
        for named in search.plans:
            file = session.work_dir / f"{function.name}-{named.name}.so"
            plan = _kernels(search.enumerated, named.plan, session, cache)
            assemble([plan], session.threads, file)
            executables.append(
                PlanExecutable(named.name, file, named.plan.predicted_s, named.single)
            )
            plans[named.name] = plan
            stage.advance(1)
    return executables, plans


def _kernels(
    enumerated: Enumerated, plan: Plan, session: Session, cache: dict[Hashable, Kernel]
) -> FunctionPlan:
    function = enumerated.function
    backends = {backend.name: backend for backend in session.backends}
    variants = {key: work.variant for key, work in enumerated.work.items()}
    planned = []
    for option in plan.options:
        inputs, outputs = region_values(function, option.nodes)
        kernel = None
        if option.backend != HOST:
            variant = variants[option.key]
            key = (option.nodes, option.backend, variant)
            if key not in cache:
                backend = backends[option.backend]
                cache[key] = backend.compile(function, option.nodes, session.threads, variant)
            kernel = cache[key]
        planned.append(PlannedKernel(option.nodes, option.backend, kernel, inputs, outputs))
    return FunctionPlan(function, tuple(planned))


def _final_executable(compiled: Sequence[Compiled], session: Session) -> Path:
    """The very file that was measured; several functions are assembled once more into one."""
    if len(compiled) == 1:
        return compiled[0].published.decision.chosen.path
    file = session.work_dir / "all.so"
    assemble([one.kernels for one in compiled], session.threads, file)
    return file


def _libraries(plans: Iterator[FunctionPlan]) -> frozenset[str]:
    found: set[str] = set()
    for plan in plans:
        for planned in plan.kernels:
            if isinstance(planned.kernel, PluginKernel):
                kind = planned.kernel.kind
                if kind == "shared_library":
                    header, _ = unpack(planned.kernel.blob)
                    libraries = header.get("libraries", ())
                    found.update(map(str, libraries if isinstance(libraries, list) else ()))
                elif kind in library_names():  # the plug-in's own kernels need no library
                    found.add(kind)
    return frozenset(found)


def compare_bundle(bundle: Path, model: Path, seconds: float) -> dict[str, Latency]:
    """Compare a saved bundle with the original frameworks, interleaved, in fresh processes.

    Raises:
        InputError: no bundle, or no model, at the path.
    """
    from collage.runtime.loader import load

    if not model.is_file():
        raise InputError(f"{model}: no such file; give the original ONNX model")
    manifest = load(bundle).manifest
    function = manifest.functions[0].function
    with np.load(bundle / "golden.npz") as golden:
        inputs = {
            one.name: golden[f"{function}/input/{one.name}"] for one in manifest.functions[0].inputs
        }
    contenders = [
        Contender("collage", "executable", bundle / manifest.executable, function),
        Contender("onnxruntime", "onnxruntime", model),
        Contender("openvino", "openvino", model),
    ]
    with tempfile.TemporaryDirectory() as work_dir:
        return compare_latency(contenders, inputs, manifest.threads, seconds, Path(work_dir))


@dataclass(frozen=True)
class Check:
    """One line of `collage doctor`."""

    name: str
    passed: bool
    detail: str


def doctor(options: Options) -> list[Check]:
    """Check what a compile needs: backends, the plug-in, a linker, the store, memory."""
    from collage.backends.registry import all_backends
    from collage.runtime.plugin import load_plugin

    checks = []
    for backend in all_backends():
        found = backend.availability()
        versions = ", ".join(f"{name} {version}" for name, version in found.libraries.items())
        checks.append(Check(f"backend {backend.name}", found.available, found.reason or versions))
    try:
        load_plugin()
        checks.append(Check("runtime plug-in", True, "loads"))
    except BackendError as error:
        checks.append(Check("runtime plug-in", False, str(error)))
    linker = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    checks.append(Check("linker", linker is not None, linker or "install g++ or clang"))
    try:
        with _work_dir(options.store_dir):
            pass
        free = shutil.disk_usage(options.store_dir).free
        checks.append(Check("store", free > 1 << 30, f"{options.store_dir}, {free >> 30} GiB free"))
    except StoreError as error:
        checks.append(Check("store", False, str(error)))
    if options.store is not None:
        checks.append(_check_shared(options.store))
    return checks


def _check_shared(address: str) -> Check:
    try:
        return Check("shared store", True, f"{open_store(address).url} keeps writers apart")
    except CollageError as error:
        return Check("shared store", False, str(error))

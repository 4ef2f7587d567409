"""Compile service on a Kubernetes cluster: the search runs here, measurements run on the nodes.

A probe (one pod) describes the nodes of an environment. The search then runs in this process as if on such
a node, with a measurer that creates Jobs. Bodies of control flow are searched before their caller, the same
way. One more pod builds the bundle, from the controller's image because it compiles; it also assembles bodies
and measures the kernels that drive them. Answers of pods are objects in the store under random keys of this
process.
"""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import uuid4

from pydantic import ValidationError

from collage.backends.base import Backend
from collage.backends.registry import known_backends
from collage.cluster.controller.backend_groups import named_groups
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.job_submission import LABEL_DIGITS, MEASURE, SearchTask
from collage.cluster.controller.measurer import ClusterMeasurer
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.api import Jobs, connect
from collage.cluster.kubernetes.job_ledger import JobLedger
from collage.cluster.kubernetes.job_watch import Notice
from collage.cluster.kubernetes.jobs import JobRunner
from collage.cluster.kubernetes.manifests import LABEL, JobTask, Kind
from collage.cost import SharedCostTable
from collage.entries import ModelEntry
from collage.errors import ClusterError, GateError, OptionError, UnprovenError
from collage.frontend import Function, Model
from collage.frontend.region import region_digest
from collage.measure.cost_key import CostKeys
from collage.pipeline.bodies import search_bodies
from collage.pipeline.compile_context import CompileContext, open_compile_context
from collage.pipeline.compile_service import (
    check_device,
    requested_functions,
    search_model_function,
)
from collage.pipeline.request import (
    BundleAnswer,
    CompileRequest,
    CompileResult,
    NodeInformation,
    SearchResult,
    fetch_models,
)
from collage.pipeline.request_samples import fetch_samples
from collage.pipeline.search_stage import model_sweep
from collage.report.progress import Progress
from collage.store import open_store
from collage.store.record_keys import KEY_VARIABLE, MAKE_A_KEY, configured_keys, record_keys
from collage.store.usage import NOBODY, WorkOwner, today
from collage.store.usage_limits import Limit, LimitCheck

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", NodeInformation, BundleAnswer)

ANSWERS = "answers"
FINISH = ("python", "-m", "containers.finish")


class ClusterCompileService:
    """`CompileService` on Jobs; an instance in any process resumes the Jobs of an earlier one."""

    def __init__(
        self,
        store: str,
        cache_dir: Path,
        settings: ClusterSettings,
        environments: Mapping[str, MeasuringEnvironment],
        *,
        jobs: Jobs | None = None,
        notice: Notice = log.warning,
    ) -> None:
        """Configure the store, the local cache and the cluster.

        Args:
            store: address of the store, the same here and in the pods.
            cache_dir: cache folder of this process.
            settings: namespace, images and accounts of Jobs.
            environments: measuring environments, by the name in requests.
            jobs: Jobs of the namespace; None connects to the cluster of this process.
            notice: callback for messages about waiting Jobs.
        """
        self._address, self._cache_dir = store, cache_dir
        self._settings, self._environments = settings, environments
        self._notice = notice
        self._connected = jobs
        self._facts: dict[str, NodeInformation] = {}
        self._owner, self._since = NOBODY, today()
        self._limits: tuple[Limit, ...] = ()

    def on_behalf_of(
        self, owner: WorkOwner, limits: Sequence[Limit] = (), since: date | None = None
    ) -> "ClusterCompileService":
        """Return this service with its Jobs labelled, recorded and limited for an owner.

        Args:
            owner: run, version and team of the work.
            limits: limits of usage; a Job beyond them is not created.
            since: day of the run's start, UTC; None is the present one.
        """
        service = copy.copy(self)
        service._owner, service._limits = owner, tuple(limits)
        service._since = since or today()
        return service

    def probe(self, request: CompileRequest) -> NodeInformation:
        """Probe a node of the request's environment with a new Job."""
        if ledger := self._ledger(request):
            ledger.record_unseen({f"{LABEL}/run": request.digest[:LABEL_DIGITS]})
        arguments = ["probe", "--request", request.digest]
        apart = self._environment(request).builds_separately
        answer = self._ask(Kind.PROBE, request, arguments, MEASURE if apart else ())
        facts = _parsed(NodeInformation, answer)
        self._facts[request.digest] = facts
        return facts

    def functions(self, request: CompileRequest) -> tuple[str, ...]:
        options = request.compile_options(self._address, self._cache_dir)
        with self._models(request) as entries:
            return requested_functions(request, entries, options)

    def search(self, request: CompileRequest, function: str, progress: Progress) -> SearchResult:
        facts = self._known_facts(request)
        samples = fetch_samples(open_store(self._address, writes=False), request)
        options = request.compile_options(self._address, self._cache_dir, samples)
        backends = node_backends(request, facts)

        def open_measurer(
            model: Model, searched: Function, context: CompileContext
        ) -> ClusterMeasurer:
            measurer_of = partial(self._measurer, request, context=context, facts=facts)
            body_measurer = partial(measurer_of, caller=searched.name)
            for note in search_bodies(searched, context, body_measurer):
                self._notice(note)
            return measurer_of(searched)

        with (
            self._models(request) as entries,
            open_compile_context(options, progress, facts.environment, backends) as context,
        ):
            return search_model_function(
                entries, function, context, open_measurer, assembles_bodies=False
            )

    def finish(self, request: CompileRequest, progress: Progress) -> CompileResult:
        environment = self._known_facts(request).environment
        with progress.stage("finish"):
            arguments = ["--request", request.digest, "--environment", environment.digest]
            answer = self._ask(Kind.FINISH, request, arguments, FINISH)
        finished = _parsed(BundleAnswer, answer)
        if finished.result is None:
            raise (UnprovenError if finished.unproven else GateError)(finished.refusal)
        return finished.result

    def _known_facts(self, request: CompileRequest) -> NodeInformation:
        return self._facts.get(request.digest) or self.probe(request)

    def _measurer(
        self,
        request: CompileRequest,
        function: Function,
        *,
        context: CompileContext,
        facts: NodeInformation,
        caller: str = "",
    ) -> ClusterMeasurer:
        task = SearchTask(
            request=request.digest,
            function=function.name,
            structure=region_digest(function, function.graph.everything),
            environment_name=request.environment,
            environment=facts.environment,
            backends=facts.backends,
            groups=named_groups(
                {backend.name: backend.group for backend in context.backends},
                self._environments[request.environment].backend_groups,
            ),
            store=_for_pods(self._address),
            caller=caller,
            owner=self._owner,
        )
        sweep = model_sweep(function, context.options.target, facts.cache_bytes)
        keys = CostKeys([function], context.backends, facts.environment, sweep)
        store, table = context.store, context.table
        assert store is not None, "a request's options name a store"
        assert isinstance(table, SharedCostTable), "so its costs are shared"
        signing = record_keys(context.options.store_dir)
        return ClusterMeasurer(
            task, self._runner(request), store, table, keys=keys, signing=signing
        )

    def _ask(
        self, kind: Kind, request: CompileRequest, arguments: list[str], command: tuple[str, ...]
    ) -> bytes:
        """Return the answer of a pod; an unfinished Job of the same question is adopted."""
        runner = self._runner(request)
        store = open_store(self._address, writes=False)
        labels = {"run": request.digest[:LABEL_DIGITS], "environment": request.environment}
        selector = {
            "app.kubernetes.io/component": str(kind),
            **{f"{LABEL}/{name}": value for name, value in labels.items()},
        }
        unfinished = [job for job in runner.jobs.find(selector) if not job.ended]
        if unfinished:
            name, key = unfinished[0].name, unfinished[0].notes[f"{LABEL}/answer"]
        else:
            token = uuid4().hex
            name, key = f"collage-{kind}-{token[:20]}", f"{ANSWERS}/{token}.json"
            pod_arguments = [*arguments, "--store", _for_pods(self._address), "--answer", key]
            notes = {"answer": key, "model": request.name}
            runner.submit(
                JobTask(
                    kind,
                    name,
                    {**labels, **self._owner.labels},
                    pod_arguments,
                    notes=notes,
                    command=command,
                    compiles=bool(command),
                )
            )
        end = runner.wait(name)
        answer = store.read(key)
        if answer is None:
            reason = end.reason or "its pod succeeded"
            raise ClusterError(f"the {kind} of {request.name} left no answer: {reason}")
        return answer.data

    def _runner(self, request: CompileRequest) -> JobRunner:
        environment = self._environment(request)
        ledger = self._ledger(request)
        return JobRunner(self._jobs(), environment, self._settings, self._notice, ledger=ledger)

    def _ledger(self, request: CompileRequest) -> JobLedger | None:
        """Return the ledger of the owner's Jobs; None without an owner."""
        if self._owner == NOBODY:
            return None
        store = open_store(self._address, writes=False)
        check = LimitCheck(store, self._owner, self._limits, self._since) if self._limits else None
        return JobLedger(self._jobs(), store, request.environment, owner=self._owner, check=check)

    def _environment(self, request: CompileRequest) -> MeasuringEnvironment:
        """Return the request's environment. Raises OptionError if it does not match the request."""
        if request.environment not in self._environments:
            configured = ", ".join(sorted(self._environments))
            raise OptionError(
                f"no measuring environment {request.environment!r} is configured, only {configured}"
            )
        environment = self._environments[request.environment]
        if environment.threads != request.threads:
            raise OptionError(
                f"the request asks for {request.threads} threads, the environment "
                f"{request.environment!r} has {environment.threads}"
            )
        check_device(request.environment, environment.device, request.device)
        if environment.builds_separately and configured_keys() is None:
            raise OptionError(
                f"the environment {request.environment!r} builds kernels on other nodes than it measures on, "
                "and pods open only kernels that are signed with a key of theirs: give the controller and "
                f"its pods one Secret with {KEY_VARIABLE} (store.recordKey.existingSecret of the chart; "
                f"`{MAKE_A_KEY}` makes a key), or set build.separate to false"
            )
        return environment

    def _jobs(self) -> Jobs:
        if self._connected is None:
            self._connected = connect(self._settings.namespace)
        return self._connected

    @contextmanager
    def _models(self, request: CompileRequest) -> Iterator[tuple[ModelEntry, ...]]:
        with TemporaryDirectory(prefix="collage-request-") as folder:
            yield fetch_models(open_store(self._address, writes=False), request, Path(folder))


def _parsed(kind: type[Answer], answer: bytes) -> Answer:
    """Parse a pod's answer. Raises ClusterError if another version of Collage wrote it."""
    try:
        return kind.model_validate_json(answer)
    except ValidationError as error:
        raise ClusterError(
            f"a pod's answer is no {kind.__name__} of this version of Collage: use images of one version"
        ) from error


def node_backends(request: CompileRequest, facts: NodeInformation) -> list[Backend]:
    """Return the backends of a node, for a search in this process.

    CPU rules may ask the toolchain itself, so the controller needs it in the version of the nodes. GPU
    rules need no toolchain, and the controller has no GPU: only compilers, if installed, are compared.

    Raises:
        OptionError: a version differs between the nodes and this process.
    """
    backends = []
    for backend in known_backends(request.options.backends, request.device):
        identity = facts.backends.get(backend.name)
        if identity is None:
            continue
        node_versions = set(identity.split()[1:])
        asks_toolchain = request.target.rules_need_toolchain
        availability = backend.availability() if asks_toolchain else backend.building()
        versions = {f"{name}={version}" for name, version in availability.libraries.items()}
        if (asks_toolchain and availability.reason) or not (
            versions == node_versions if asks_toolchain else versions <= node_versions
        ):
            mine = availability.reason or " ".join(sorted(versions))
            raise OptionError(
                f"the backend {backend.name} is {identity} on the nodes of {request.environment}, here "
                f"it is {mine}: use a controller image and a measuring image of one version"
            )
        backends.append(backend.with_identity(identity))
    return backends


def _for_pods(address: str) -> str:
    """Return the address without a store probe: pods may lack the right, and the controller has probed."""
    if not address.startswith(("s3://", "gs://", "az://")) or "probe=" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}probe=off"

"""A site that is a Kubernetes cluster: searched here, measured and finished on its nodes.

A probe (one pod) says what the nodes of an environment are; the search then runs in this process as if it
were such a node, with a measurer that makes Jobs; the finish is one pod again, of the controller's image,
because it compiles. Answers of pods are objects in the store under keys that are made up here.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from pydantic import ValidationError

from collage.backends.base import Backend
from collage.backends.registry import as_elsewhere, known_backends
from collage.cluster.controller.backend_groups import named_groups
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.job_submission import LABEL_DIGITS, MEASURE, SearchTask
from collage.cluster.controller.measurer import ClusterMeasurer
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.jobs import JobRunner, Notice
from collage.cluster.kubernetes.manifests import LABEL, Kind, Task
from collage.cost import SharedCostTable
from collage.errors import ClusterError, GateError, OptionError, UnprovenError
from collage.frontend import Function, Model
from collage.measure.cost_key import WorkKeys, region_structure
from collage.pipeline.compile_context import Session, open_session
from collage.pipeline.compile_service import check_device, search_part, set_count
from collage.pipeline.request import (
    CompileRequest,
    CompileResult,
    FinishAnswer,
    NodeFacts,
    SearchFacts,
    fetch_model,
)
from collage.pipeline.search_stage import model_sweep
from collage.report.progress import Progress
from collage.store import open_store
from collage.store.record_keys import KEY_VARIABLE, MAKE_A_KEY, configured_keys, record_keys

if TYPE_CHECKING:
    from collage.cluster.kubernetes.api import Jobs

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", NodeFacts, FinishAnswer)

ANSWERS = "answers"
FINISH = ("python", "-m", "containers.finish")


class ClusterSite:
    """Implements `Site` with Jobs; made anew in any process, it resumes what another one began."""

    def __init__(
        self,
        store: str,
        cache_dir: Path,
        settings: ClusterSettings,
        environments: Mapping[str, MeasuringEnvironment],
        *,
        jobs: "Jobs | None" = None,
        notice: Notice = log.warning,
    ) -> None:
        """Name the store's address, this process's own folder, and the cluster.

        Args:
            store: reached under the same address from here and from the pods.
            cache_dir: of this process.
            settings: where Jobs are made.
            environments: that requests may name.
            jobs: of the namespace; None connects to the cluster of this process.
            notice: told what a Job waits for.
        """
        self._address, self._cache_dir = store, cache_dir
        self._settings, self._environments = settings, environments
        self._notice = notice
        self._connected = jobs
        self._facts: dict[str, NodeFacts] = {}

    def describe(self, request: CompileRequest) -> NodeFacts:
        """Ask a node of the request's environment, now."""
        arguments = ["probe", "--request", request.digest]
        apart = self._environment(request).builds_apart
        answer = self._ask(Kind.PROBE, request, arguments, MEASURE if apart else ())
        facts = _parsed(NodeFacts, answer)
        self._facts[request.digest] = facts
        return facts

    def functions(self, request: CompileRequest) -> tuple[str, ...]:
        return tuple("main" if not n else f"main_{n}" for n in range(set_count(request)))

    def search(self, request: CompileRequest, function: str, progress: Progress) -> SearchFacts:
        facts = self._known_facts(request)
        options = request.compile_options(self._address, self._cache_dir)
        backends = node_backends(request, facts)

        def open_measurer(model: Model, one: Function, session: Session) -> ClusterMeasurer:
            return self._measurer(request, one, session, facts)

        with (
            self._model(request) as path,
            open_session(options, progress, facts.environment, backends) as session,
        ):
            return search_part(path, function, session, open_measurer)

    def finish(self, request: CompileRequest, progress: Progress) -> CompileResult:
        environment = self._known_facts(request).environment
        with progress.stage("finish"):
            arguments = ["--request", request.digest, "--environment", environment.digest]
            answer = self._ask(Kind.FINISH, request, arguments, FINISH)
        found = _parsed(FinishAnswer, answer)
        if found.result is None:
            raise (UnprovenError if found.unproven else GateError)(found.refusal)
        return found.result

    def _known_facts(self, request: CompileRequest) -> NodeFacts:
        return self._facts.get(request.digest) or self.describe(request)

    def _measurer(
        self, request: CompileRequest, function: Function, session: Session, facts: NodeFacts
    ) -> ClusterMeasurer:
        task = SearchTask(
            request=request.digest,
            function=function.name,
            structure=region_structure(function, function.graph.everything),
            environment_name=request.environment,
            environment=facts.environment,
            backends=facts.backends,
            groups=named_groups(
                {backend.name: backend.group for backend in session.backends},
                self._environments[request.environment].backend_groups,
            ),
            store=_for_pods(self._address),
        )
        sweep = model_sweep(function, session.options.device, facts.cache_bytes)
        keys = WorkKeys([function], session.backends, facts.environment, sweep)
        store, table = session.store, session.table
        assert store is not None, "a request's options name a store"
        assert isinstance(table, SharedCostTable), "so its costs are shared"
        signing = record_keys(session.options.store_dir)
        return ClusterMeasurer(task, self._runner(request), store, table, keys, signing)

    def _ask(
        self, kind: Kind, request: CompileRequest, arguments: list[str], command: tuple[str, ...]
    ) -> bytes:
        """Let a pod answer; an unfinished Job that was asked the same is waited for instead."""
        runner = self._runner(request)
        store = open_store(self._address, writes=False)
        labels = {"run": request.digest[:LABEL_DIGITS], "environment": request.environment}
        selector = {
            "app.kubernetes.io/component": str(kind),
            **{f"{LABEL}/{name}": value for name, value in labels.items()},
        }
        asked = [job for job in runner.jobs.find(selector) if not job.ended]
        if asked:
            name, key = asked[0].name, asked[0].notes[f"{LABEL}/answer"]
        else:
            token = uuid4().hex
            name, key = f"collage-{kind}-{token[:20]}", f"{ANSWERS}/{token}.json"
            told = [*arguments, "--store", _for_pods(self._address), "--answer", key]
            notes = {"answer": key, "model": request.name}
            runner.submit(Task(kind, name, labels, told, notes, command, compiles=bool(command)))
        end = runner.wait(name)
        found = store.read(key)
        if found is None:
            why = end.reason or "its pod succeeded"
            raise ClusterError(f"the {kind} of {request.name} left no answer: {why}")
        return found.data

    def _runner(self, request: CompileRequest) -> JobRunner:
        environment = self._environment(request)
        return JobRunner(self._jobs(), environment, self._settings, self._notice)

    def _environment(self, request: CompileRequest) -> MeasuringEnvironment:
        """Return where the request is worked on. Raises OptionError where that is not what it asks for."""
        if request.environment not in self._environments:
            known = ", ".join(sorted(self._environments))
            raise OptionError(
                f"no measuring environment {request.environment!r} is configured, only {known}"
            )
        environment = self._environments[request.environment]
        if environment.threads != request.threads:
            raise OptionError(
                f"the request asks for {request.threads} threads, the environment "
                f"{request.environment!r} has {environment.threads}"
            )
        check_device(request.environment, environment.device, request.device)
        if environment.builds_apart and configured_keys() is None:
            raise OptionError(
                f"the environment {request.environment!r} builds kernels on other nodes than it measures on, "
                "and pods open only kernels that are signed with a key of theirs: give the controller and "
                f"its pods one Secret with {KEY_VARIABLE} (store.recordKey.existingSecret of the chart; "
                f"`{MAKE_A_KEY}` makes a key), or set build.separate to false"
            )
        return environment

    def _jobs(self) -> "Jobs":
        if self._connected is None:
            from collage.cluster.kubernetes.api import connect

            self._connected = connect(self._settings.namespace)
        return self._connected

    @contextmanager
    def _model(self, request: CompileRequest) -> Iterator[Path]:
        with TemporaryDirectory(prefix="collage-request-") as folder:
            yield fetch_model(open_store(self._address, writes=False), request, Path(folder))


def _parsed(kind: type[Answer], answer: bytes) -> Answer:
    """Return what a pod said. Raises ClusterError where this version does not understand it."""
    try:
        return kind.model_validate_json(answer)
    except ValidationError as error:
        raise ClusterError(
            f"a pod's answer is no {kind.__name__} of this version of Collage: use images of one version"
        ) from error


def node_backends(request: CompileRequest, facts: NodeFacts) -> list[Backend]:
    """Return the backends of a node, to search with here.

    What lists candidates on a CPU may ask the toolchain itself, so it must be here too, in its version.
    Toolchains of a GPU are not where the controller runs: their rules need none, and only the compilers,
    where there are some, are compared.

    Raises:
        OptionError: they differ here.
    """
    found = []
    for backend in known_backends(request.options.backends, request.device):
        identity = facts.backends.get(backend.name)
        if identity is None:
            continue
        on_cpu, there = request.device == "cpu", set(identity.split()[1:])
        here = backend.availability() if on_cpu else backend.building()
        versions = {f"{name}={version}" for name, version in here.libraries.items()}
        if (on_cpu and here.reason) or not (versions == there if on_cpu else versions <= there):
            mine = here.reason or " ".join(sorted(versions))
            raise OptionError(
                f"the backend {backend.name} is {identity} on the nodes of {request.environment}, here "
                f"it is {mine}: use a controller image and a measuring image of one version"
            )
        found.append(as_elsewhere(backend, identity))
    return found


def _for_pods(address: str) -> str:
    """The controller has probed the store; its pods may lack the right to."""
    if not address.startswith("s3://") or "probe=" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}probe=off"

"""The tasks of `optimize_model`: each parses, calls one function of `collage`, and records."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import ParamSpec, TypeVar

from prefect import Task, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.sync import concurrency
from prefect.runtime import flow_run
from prefect.tasks import exponential_backoff

from collage.entries import find_entries
from collage.errors import OptionError
from collage.options import DeviceName
from collage.pipeline.compile_service import CompileService
from collage.pipeline.entry_import import read_entry_samples
from collage.pipeline.model_source import fetch_samples_source, fetch_source, is_address
from collage.pipeline.request import (
    CompileRequest,
    CompileResult,
    NodeInformation,
    RequestOptions,
    SearchResult,
    submit,
)
from collage.pipeline.results import claim_result, node_digest, promote, read_result
from collage.pipeline.version_options import VersionOptions, parse_version_options
from collage.registry import Registry, VersionStatus, open_registry
from collage.store import open_store
from collage.store.base import BlobDigest
from collage.store.bundle_aliases import assign_alias
from collage.store.bundle_statements import BundleSigning
from collage.store.manifests import require_proven
from collage.store.statement import SignedModel
from collage.store.usage import today
from flows import artifacts
from flows.cost import counted, require_room, work_owner
from flows.environments import EnvironmentChoice, chosen_environments, open_compile_service
from flows.names import limit_name, optimized_alias, version_alias
from flows.progress import flow_progress
from flows.results import (
    Outcome,
    Submitted,
    is_infrastructure,
    overall,
    verdict_text,
    version_status,
)
from flows.settings import FlowSettings, flow_settings
from flows.teams import read_teams, team_environments

P = ParamSpec("P")
R = TypeVar("R")


@task(name="import", cache_policy=NO_CACHE)
def import_model(
    model: str,
    version: str | None,
    environments: list[str] | None,
    options: RequestOptions | None,
    *,
    device: DeviceName | None = None,
    samples: str = "",
) -> Submitted:
    """Copy the model and its samples to the store, with one request for each environment."""
    settings = flow_settings()
    with tempfile.TemporaryDirectory(prefix="collage-import-") as name:
        folder = Path(name)
        if is_address(model):
            chosen = chosen_environments(environments, device, settings)
            path = fetch_source(model, folder)
            fetched = [fetch_samples_source(samples, folder)] if samples else []
            return _submit(path, "", "", chosen, options=options, samples=fetched)
        registry = configured_registry(settings)
        registered = registry.find(model, version)
        tags = registry.user_tags(registered)
        registry.record_status(
            registered, VersionStatus(status="running", options_digest=tags.digest)
        )
        place = registry.options_place(registered)
        own = parse_version_options(tags.options, place)
        team = read_teams(settings.teams_file).name_of(registered.name, own.team, tags.team)
        chosen = _version_environments(own, team, environments, device)
        path = registry.download(registered, folder)
        owner = work_owner(registered.name, registered.version, team)
        require_room(owner, today(), settings)
        submitted = _submit(
            path, registered.name, registered.version, chosen, options=own.over(options),
            samples=registry.samples(registered, folder, samples),
        )  # fmt: skip
        return submitted.model_copy(
            update={
                "options_digest": tags.digest, "options_place": place, "team": owner.team
            }
        )  # fmt: skip


def _version_environments(
    own: VersionOptions, team: str, environments: list[str] | None, device: DeviceName | None
) -> tuple[EnvironmentChoice, ...]:
    """Return the environments of a version: its own ones, else its team's, else those of the run.

    The first two stand over the run's device too.
    """
    settings = flow_settings()
    if named := team_environments(own, team, settings):
        return chosen_environments(named, None, settings)
    return chosen_environments(environments, device, settings)


def _submit(
    path: Path,
    model: str,
    version: str,
    chosen: Sequence[EnvironmentChoice],
    *,
    options: RequestOptions | None,
    samples: Sequence[Path],
) -> Submitted:
    store = open_store(flow_settings().store)
    user_samples = read_entry_samples(samples, find_entries(path))
    requests = [
        submit(store, path, name=model, options=options, samples=user_samples, **asdict(choice))
        for choice in chosen
    ]
    first = requests[0]
    return Submitted(
        model=first.name,
        version=version or first.models[0].model[:12],
        requests=tuple(requests),
        run=str(flow_run.id or ""),
    )


@task(task_run_name="probe {request.environment}", cache_policy=NO_CACHE)
def probe(submitted: Submitted, request: CompileRequest) -> NodeInformation:
    """Probe a node of the environment."""
    return _service(submitted, request, flow_settings()).probe(request)


@task(task_run_name="search {function} on {request.environment}", cache_policy=NO_CACHE)
def search(submitted: Submitted, request: CompileRequest, function: str) -> SearchResult:
    """Search the plans of one function with measured costs."""
    settings = flow_settings()
    subject = f"{function} on {request.environment}"
    with (
        _slot(request.environment, settings),
        counted(submitted.owner, request, "search", since=submitted.started),
        flow_progress(subject, settings.progress_every_s) as progress,
    ):
        facts = _service(submitted, request, settings).search(request, function, progress)
    get_run_logger().info(
        "%s: %d measured, %d from the store, %d invalid of %d different candidates in %.0f s",
        subject, facts.measured, facts.cached, facts.invalid, facts.unique, facts.seconds,
    )  # fmt: skip
    artifacts.plan_ready(submitted.model, request, facts)
    return facts


@task(task_run_name="finish on {request.environment}", cache_policy=NO_CACHE)
def finish(
    submitted: Submitted,
    request: CompileRequest,
    facts: NodeInformation,
    searches: Sequence[SearchResult],
) -> CompileResult:
    """Assemble, compare whole, pass the gate and publish, unless another run has a result."""
    settings = flow_settings()
    store = open_store(settings.store)
    with _slot(request.environment, settings):
        if finished_before := read_result(store, request, facts):
            return finished_before
        subject = f"whole model on {request.environment}"
        with (
            counted(submitted.owner, request, "finish", since=submitted.started),
            flow_progress(subject, settings.progress_every_s) as progress,
        ):
            result = _service(submitted, request, settings).finish(request, progress)
        return claim_result(
            store, request, facts, result
        )  # another run may have claimed the result


@task(task_run_name="publish {request.environment}", cache_policy=NO_CACHE)
def publish(
    model: str,
    version: str,
    request: CompileRequest,
    facts: NodeInformation,
    *,
    result: CompileResult,
) -> Outcome:
    """Move the version's alias to the bundle if it is better.

    Raises:
        UnprovenError: the bundle is not proven as fast as the original frameworks.
    """
    settings = flow_settings()
    store, aliases = open_store(settings.store), settings.signing()
    alias = version_alias(model, version, request.environment)
    signed = SignedModel.of_registry(model, version, request.digest)
    signing = BundleSigning(aliases, signed) if aliases else None
    promotion = promote(store, alias, facts, result, signing=signing)
    return Outcome(
        environment=request.environment,
        status="optimized",
        reason=verdict_text(result, promotion.reason),
        node=node_digest(facts),
        bundle=promotion.bundle,
        alias=alias,
        moved=promotion.moved,
        result=result,
    )


@task(cache_policy=NO_CACHE)
def conclude(submitted: Submitted, outcomes: Sequence[Outcome]) -> None:
    """Record the result in the registry; the tags come last and mark the end of all other steps."""
    settings = flow_settings()
    registry = configured_registry(settings)
    version = registry.find(submitted.model, submitted.version)
    status = overall(outcomes)
    if status == "optimized":
        store, signing = open_store(settings.store), settings.signing()
        for outcome in outcomes:
            alias = optimized_alias(submitted.model, outcome.environment)
            require_proven(store, BlobDigest(outcome.bundle))
            assign_alias(store, alias, BlobDigest(outcome.bundle), signing=signing)
        registry.accept(version)
    registry.record_status(version, version_status(outcomes, submitted.options_digest))


def retried(step: "Task[P, R]", settings: FlowSettings) -> "Task[P, R]":
    """Return the task with retries after failures of infrastructure: the only retries of a run."""
    return step.with_options(
        retries=settings.retries,
        retry_delay_seconds=exponential_backoff(settings.retry_delay_s),
        retry_jitter_factor=0.5,
        retry_condition_fn=_may_retry,
    )


def configured_registry(settings: FlowSettings) -> Registry:
    """Open the registry of the settings.

    Raises:
        OptionError: no registry is configured.
    """
    if not settings.registry:
        raise OptionError(
            "no model registry is configured: set COLLAGE_REGISTRY, or give the address of an ONNX file:"
            " s3://..., or a path with its folder (/path/model.onnx)"
        )
    return open_registry(settings.registry, alias=settings.alias, accepted=settings.accepted)


def _service(
    submitted: Submitted, request: CompileRequest, settings: FlowSettings
) -> CompileService:
    """Return the compile service of the request's environment, for this run."""
    return open_compile_service(request.environment, settings, submitted.owner, submitted.started)


@contextmanager
def _slot(environment: str, settings: FlowSettings) -> Iterator[None]:
    """Hold one of the environment's slots; an absent limit fails the task.

    A failed renewal of the lease does not stop a measurement: at worst a second run measures the same.
    """
    with concurrency(
        limit_name(environment, settings.release),
        strict=True,
        lease_duration=settings.lease_s,
        raise_on_lease_renewal_failure=False,
    ):
        yield


def _may_retry(_: "Task[..., object]", __: TaskRun, state: State) -> bool:
    try:
        state.result()
    except Exception as error:  # noqa: BLE001 - any failure of a task
        return is_infrastructure(error)
    return False

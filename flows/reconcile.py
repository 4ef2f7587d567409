"""`reconcile_registry`: starts the runs that are due after a lost webhook, a crash or a changed machine."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.runtime import deployment, flow_run
from prefect.states import Completed

from collage.errors import OptionError
from collage.pipeline.request import RequestOptions, submit
from collage.pipeline.results import node_digest
from collage.registry import Registry
from collage.store import open_store
from collage.store.usage import today
from collage.store.usage_limits import DayUsage
from flows.cancellation import end_jobs_of_cancelled_runs, optimize_deployment
from flows.environments import chosen_environments, open_compile_service
from flows.own_runs import cancel_late_runs, own_runs
from flows.reconcile_policy import (
    OPTIONS_PREFIX,
    TEAM_PREFIX,
    RunFact,
    options_tag,
    start_key,
    team_tag,
)
from flows.settings import FlowSettings, flow_settings
from flows.start_plan import DueVersion, plan_starts
from flows.tasks import configured_registry, retried
from flows.teams import Teams, read_teams, run_limits


@flow(name="reconcile-registry")
def reconcile_registry(check_environments: bool = False) -> State:
    """Start an optimize run for every registry candidate that needs one.

    Late runs of this flow are cancelled: this one does their work, a probe of the nodes included.

    Args:
        check_environments: True also probes the nodes for changed hardware, driver or toolchains.
    """
    settings = flow_settings()
    late = _late_runs()
    asked = check_environments or any(run.parameters.get("check_environments") for run in late)
    started = retried(reconcile, settings)(asked)
    return Completed(message=f"{len(started)} started", data=started)


@task(cache_policy=NO_CACHE)
def reconcile(check_environments: bool) -> list[str]:
    """Start the due runs whose team has its turn; return their models and versions."""
    settings, log = flow_settings(), get_run_logger()
    registry, teams = configured_registry(settings), read_teams(settings.teams_file)
    nodes = _nodes(registry, settings, check_environments)
    with get_client(sync_client=True) as client:
        target = _deployment(client, settings)
        runs = _runs_by_version(own_runs(client, target, "optimize-model"))
        for name in end_jobs_of_cancelled_runs(client, target, settings):
            log.info("deleted the Job %s of a cancelled run", name)
    usage = _day_usage(settings)
    plan = plan_starts(registry, runs, nodes, settings, teams=teams, usage=usage)
    for due in plan.starts:
        _start(due, teams, settings)
        log.info("%s: %s", due.label, due.reason)
    for label, reason in plan.refused.items():
        log.info("%s is not started: %s", label, reason)
    log.info(
        "%d runs started, %d versions wait for a turn, %d are over a limit",
        len(plan.starts), len(plan.waiting), len(plan.refused),
    )  # fmt: skip
    return [due.label for due in plan.starts]


def _day_usage(settings: FlowSettings) -> DayUsage | None:
    """Return the usage of the present day; None where nothing is limited, to save the listing."""
    teams = read_teams(settings.teams_file)
    names = ("", *teams.by_name)
    if not any(run_limits(name, settings) for name in names):
        return None
    return DayUsage(open_store(settings.store, writes=False), today())


def _start(due: DueVersion, teams: Teams, settings: FlowSettings) -> None:
    version = due.version
    run_deployment(
        settings.optimize_deployment,
        parameters={"model": version.name, "version": version.version},
        idempotency_key=start_key(version, due.runs, settings.release),
        tags=[options_tag(due.tags.digest), team_tag(due.team)],
        work_queue_name=teams.of(due.team).queue or None,
        timeout=0,
        as_subflow=False,
    )


def _nodes(registry: Registry, settings: FlowSettings, ask: bool) -> dict[str, str]:
    """Probe a node of each environment, with the first candidate as the request's model.

    Environments and options are those of the deployment's runs: they select the nodes and toolchains.
    """
    parameters = _deployment_parameters(settings)
    chosen = chosen_environments(parameters.get("environments"), parameters.get("device"), settings)
    first = next(registry.candidates(), None) if ask else None
    if first is None:
        return {choice.environment: "" for choice in chosen}
    options = RequestOptions.model_validate(parameters.get("options") or {})
    digests = {}
    store = open_store(settings.store)
    with tempfile.TemporaryDirectory(prefix="collage-reconcile-") as folder:
        path = registry.download(first, Path(folder))
        for choice in chosen:
            request = submit(store, path, name=first.name, options=options, **asdict(choice))
            service = open_compile_service(choice.environment, settings)
            digests[choice.environment] = node_digest(service.probe(request))
    return digests


def _deployment_parameters(settings: FlowSettings) -> Mapping[str, Any]:
    """Return the parameters of the deployment's runs, empty without a deployment."""
    with get_client(sync_client=True) as client:
        target = optimize_deployment(client, settings)
    return target.parameters if target else {}


def _deployment(client: SyncPrefectClient, settings: FlowSettings) -> DeploymentResponse:
    """Return the deployment to start runs of. Raises OptionError before the set-up."""
    target = optimize_deployment(client, settings)
    if target is None:
        raise OptionError(
            f"Prefect has no deployment {settings.optimize_deployment}: run python -m flows.setup with the "
            "settings of this installation, or correct COLLAGE_RELEASE and COLLAGE_DEPLOYMENT"
        )
    return target


def _late_runs() -> list[FlowRun]:
    """Cancel the late runs of the current run's deployment; return them."""
    if not deployment.id:
        return []
    reason = f"late: the run {flow_run.name} does its work"
    with get_client(sync_client=True) as client:
        late = cancel_late_runs(client, UUID(deployment.id), reason)
    if late:
        get_run_logger().info("%d late runs cancelled: this one does their work", len(late))
    return late


def _runs_by_version(runs: Iterable[FlowRun]) -> Mapping[tuple[str, str], list[RunFact]]:
    """Return the runs of each (model, version), the latest first; a run without a version has ""."""
    runs_by_version: dict[tuple[str, str], list[RunFact]] = {}
    for run in runs:
        named = (str(run.parameters.get("model")), str(run.parameters.get("version") or ""))
        runs_by_version.setdefault(named, []).append(_fact(run))
    return runs_by_version


def _fact(run: FlowRun) -> RunFact:
    state = run.state_type.value if run.state_type else "SCHEDULED"
    options = next((tag for tag in run.tags if tag.startswith(OPTIONS_PREFIX)), "")
    teams = [tag.removeprefix(TEAM_PREFIX) for tag in run.tags if tag.startswith(TEAM_PREFIX)]
    return RunFact(
        str(run.id), state, run.state_name or "", options, team=teams[0] if teams else None
    )

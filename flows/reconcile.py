"""`reconcile_registry`: starts the runs that are due after a lost webhook, a crash or a changed machine."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed

from collage.pipeline.request import RequestOptions, submit
from collage.pipeline.results import node_digest
from collage.registry import ModelVersion, Registry
from collage.store import open_store
from flows.environments import chosen_environments, open_compile_service
from flows.reconcile_policy import RunFact, reason_to_start, start_key
from flows.settings import FlowSettings, flow_settings
from flows.tasks import configured_registry, retried

PAGE, PAGES = 200, 10
"""Page size and number of pages of the examined runs, the latest first."""


@flow(name="reconcile-registry")
def reconcile_registry(check_environments: bool = False) -> State:
    """Start an optimize run for every registry candidate that needs one.

    Args:
        check_environments: True also probes the nodes for changed hardware, driver or toolchains.
    """
    settings = flow_settings()
    started = retried(reconcile, settings)(check_environments)
    return Completed(message=f"{len(started)} started", data=started)


@task(cache_policy=NO_CACHE)
def reconcile(check_environments: bool) -> list[str]:
    """Start the due runs; return their models and versions."""
    settings = flow_settings()
    registry = configured_registry(settings)
    versions = list(registry.candidates())
    nodes = _nodes(registry, versions, settings, check_environments)
    with get_client(sync_client=True) as client:
        runs = _runs_by_version(client, settings)
    started = []
    for version in versions:
        own = [*runs.get((version.name, version.version), ()), *runs.get((version.name, ""), ())]
        reason = reason_to_start(registry.status(version), own, nodes, settings.attempts)
        if reason:
            _start(version, own, settings)
            started.append(f"{version.name} {version.version}")
            get_run_logger().info("%s %s: %s", version.name, version.version, reason)
    get_run_logger().info("%d candidates, %d runs started", len(versions), len(started))
    return started


def _start(version: ModelVersion, runs: Sequence[RunFact], settings: FlowSettings) -> None:
    run_deployment(
        settings.deployment,
        parameters={"model": version.name, "version": version.version},
        idempotency_key=start_key(version.name, version.version, runs),
        timeout=0,
        as_subflow=False,
    )


def _nodes(
    registry: Registry, versions: Sequence[ModelVersion], settings: FlowSettings, ask: bool
) -> dict[str, str]:
    """Probe a node of each environment, with the first candidate as the request's model.

    Environments and options are those of the deployment's runs: they select the nodes and toolchains.
    """
    parameters = _deployment_parameters(settings)
    chosen = chosen_environments(parameters.get("environments"), parameters.get("device"), settings)
    if not ask or not versions:
        return {choice.environment: "" for choice in chosen}
    options = RequestOptions.model_validate(parameters.get("options") or {})
    digests = {}
    store = open_store(settings.store)
    with tempfile.TemporaryDirectory(prefix="collage-reconcile-") as folder:
        path = registry.download(versions[0], Path(folder))
        for choice in chosen:
            request = submit(store, path, name=versions[0].name, options=options, **asdict(choice))
            service = open_compile_service(choice.environment, settings)
            digests[choice.environment] = node_digest(service.probe(request))
    return digests


def _deployment_parameters(settings: FlowSettings) -> Mapping[str, Any]:
    """Return the parameters of the deployment's runs, empty without a deployment."""
    with get_client(sync_client=True) as client:
        try:
            return client.read_deployment_by_name(settings.deployment).parameters
        except ObjectNotFound:
            return {}


def _runs_by_version(
    client: SyncPrefectClient, settings: FlowSettings
) -> Mapping[tuple[str, str], list[RunFact]]:
    """Return the runs of each (model, version), the latest first; a run without a version has ""."""
    flow_name = settings.deployment.partition("/")[0]
    runs_by_version: dict[tuple[str, str], list[RunFact]] = {}
    for page in range(PAGES):
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=PAGE,
            offset=page * PAGE,
        )
        for run in runs:
            named = (str(run.parameters.get("model")), str(run.parameters.get("version") or ""))
            runs_by_version.setdefault(named, []).append(_fact(run))
        if len(runs) < PAGE:
            break
    return runs_by_version


def _fact(run: FlowRun) -> RunFact:
    state = run.state_type.value if run.state_type else "SCHEDULED"
    return RunFact(str(run.id), state, run.state_name or "")

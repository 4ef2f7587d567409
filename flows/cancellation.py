"""The end of a cancelled run's Jobs.

Prefect ends the process of a cancelled run, and nothing else: its Jobs would measure on. A run notes its
requests as labels of itself before it creates a Job, and Jobs carry the request's digest. After a cancel the
Jobs are deleted twice over: at once by the flow's hook, in the worker that ended the process, and by the next
reconcile, for runs whose worker is gone. A Job that a living run of the same request waits for stays.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.logging.loggers import flow_run_logger
from prefect.runtime import flow_run as current_run
from prefect.types import KeyValueLabels

from collage.pipeline.request import CompileRequest
from flows.own_runs import own_runs
from flows.settings import FlowSettings, flow_settings

REQUEST = "collage.request."
"""Prefix of a run's labels: environment -> digest of its request."""
_LIVE = (StateType.PENDING, StateType.RUNNING)
_CANCELLED = (StateType.CANCELLED, StateType.CANCELLING)
_HOOK_TIME = timedelta(minutes=2)
"""Time for a run's worker to end it; then reconcile does."""
_JOB_TIME = timedelta(days=2)
"""Age of a cancelled run beyond which no Job of it is left: they have deadlines."""


def note_requests(requests: Iterable[CompileRequest]) -> None:
    """Label the current run with its requests."""
    labels: KeyValueLabels = {
        f"{REQUEST}{request.environment}": request.digest for request in requests
    }
    run_id = UUID(current_run.id)
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(run_id, labels)


def end_jobs(flow: "Flow[..., object]", flow_run: FlowRun, state: State) -> None:
    """Delete the Jobs of a run that is being cancelled: the hook of `optimize_model`."""
    settings = flow_settings()
    with get_client(sync_client=True) as client:
        deployment = optimize_deployment(client, settings)
        if deployment is not None:
            for name in _delete_jobs(client, deployment, [flow_run], settings):
                flow_run_logger(flow_run).info("deleted the Job %s of the cancelled run", name)


def end_jobs_of_cancelled_runs(
    client: SyncPrefectClient, deployment: DeploymentResponse, settings: FlowSettings
) -> list[str]:
    """Delete the Jobs that cancelled runs have left; return their names."""
    if settings.cluster is None:
        return []
    present = datetime.now(UTC)
    runs = [
        run
        for run in own_runs(client, deployment, "optimize-model", _CANCELLED)
        if run.state and _HOOK_TIME < present - run.state.timestamp < _JOB_TIME
    ]
    return _delete_jobs(client, deployment, runs, settings)


def optimize_deployment(
    client: SyncPrefectClient, settings: FlowSettings
) -> DeploymentResponse | None:
    """Return the deployment that reconcile starts runs of, None before the set-up."""
    try:
        return client.read_deployment_by_name(settings.optimize_deployment)
    except ObjectNotFound:
        return None


def _delete_jobs(
    client: SyncPrefectClient,
    deployment: DeploymentResponse,
    runs: Sequence[FlowRun],
    settings: FlowSettings,
) -> list[str]:
    ended = {digest for run in runs for digest in _requests(run)}
    if not ended or settings.cluster is None:
        return []
    from collage.cluster.controller.job_submission import LABEL_DIGITS
    from collage.cluster.kubernetes.api import connect
    from collage.cluster.kubernetes.manifests import LABEL

    ids = {run.id for run in runs}
    living = [
        run for run in own_runs(client, deployment, "optimize-model", _LIVE) if run.id not in ids
    ]
    ended -= {digest for run in living for digest in _requests(run)}
    jobs = connect(settings.cluster.namespace)
    deleted = []
    for digest in sorted(ended):
        for job in jobs.find({f"{LABEL}/run": digest[:LABEL_DIGITS]}):
            if not job.ended:
                jobs.delete(job.name)
                deleted.append(job.name)
    return deleted


def _requests(run: FlowRun) -> list[str]:
    """Return the digests of the run's requests."""
    return [str(digest) for name, digest in run.labels.items() if name.startswith(REQUEST)]

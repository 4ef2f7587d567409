"""The owner of a Prefect server's work pools and deployments, where several installations share the server.

Every deployment of Collage has the tag `collage.owner=RELEASE/STORE`, with a digest of the store's address:
two installations differ in one of both. A pool belongs to the owner of the deployments in it, because its
worker runs them with the settings of its own installation. Deployments without the tag are those of versions
of Collage without owners; in a release's pool they are its predecessors if the operator says so (`--adopt`).
"""

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from urllib.parse import parse_qs

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Scheduled

from collage.errors import OptionError
from collage.release_names import released
from flows.settings import FlowSettings

TAG = "collage.owner="
DEPLOYED: Mapping[str, str] = MappingProxyType(
    {
        "optimize-model": "optimize",
        "reconcile-registry": "reconcile",
        "collect-garbage": "garbage",
    }
)
"""Plain name of the deployment of each flow."""
_PAGE = 200


def owner_tag(settings: FlowSettings) -> str:
    """Return the tag of this installation's deployments."""
    location, _, query = settings.store.partition("?")
    endpoint = parse_qs(query).get("endpoint", [""])[-1]
    digest = hashlib.sha256(f"{location.rstrip('/')} {endpoint}".encode()).hexdigest()
    return f"{TAG}{settings.release}/{digest[:12]}"


def check_owner(client: SyncPrefectClient, settings: FlowSettings, *, adopt: bool) -> None:
    """Check that the pool and the deployments of the settings are this installation's, or nobody's.

    Args:
        client: client of the Prefect server.
        settings: settings of this installation.
        adopt: deployments without an owner are this installation's.

    Raises:
        OptionError: they belong to another installation.
    """
    own = owner_tag(settings)
    for flow, deployment in _deployments(client, settings.work_pool):
        path = f"{flow}/{deployment.name}"
        owner = _owner(deployment)
        if owner and owner != own:
            raise OptionError(_foreign_pool(settings.work_pool, path, owner, own=own))
        if not owner and _is_predecessor(flow, deployment, settings) and not adopt:
            raise OptionError(_unowned(settings.work_pool, path))
    for flow, name in DEPLOYED.items():
        _check_deployment(client, settings, f"{flow}/{released(name, settings.release)}", adopt)


def check_pool(client: SyncPrefectClient, settings: FlowSettings) -> None:
    """Check that no other installation has deployments in the pool.

    Raises:
        OptionError: another installation has one.
    """
    own = owner_tag(settings)
    for flow, deployment in _deployments(client, settings.work_pool):
        owner = _owner(deployment)
        if owner and owner != own:
            path = f"{flow}/{deployment.name}"
            raise OptionError(_foreign_pool(settings.work_pool, path, owner, own=own))


def retire_predecessors(client: SyncPrefectClient, settings: FlowSettings) -> list[str]:
    """Delete the deployments of this pool from before the release had a name; return their names.

    Runs that wait move to the deployment of today; runs under way continue.
    """
    predecessors = [
        (flow, deployment)
        for flow, deployment in _deployments(client, settings.work_pool)
        if not _owner(deployment) and _is_predecessor(flow, deployment, settings)
    ]
    for flow, deployment in predecessors:
        successor = f"{flow}/{released(DEPLOYED[flow], settings.release)}"
        if flow == "optimize-model":
            _move_waiting_runs(client, deployment, client.read_deployment_by_name(successor))
        client.delete_deployment(deployment.id)
    return [f"{flow}/{deployment.name}" for flow, deployment in predecessors]


def _move_waiting_runs(
    client: SyncPrefectClient, source: DeploymentResponse, target: DeploymentResponse
) -> None:
    for run in _waiting_runs(client, source):
        client.create_flow_run_from_deployment(
            target.id,
            parameters=run.parameters,
            name=run.name,
            state=Scheduled(scheduled_time=run.next_scheduled_start_time),
            idempotency_key=f"moved:{run.id}",
        )
        moved_to = f"moved to the deployment {target.name}"
        client.set_flow_run_state(run.id, Cancelled(message=moved_to), force=True)


def _waiting_runs(client: SyncPrefectClient, deployment: DeploymentResponse) -> list[FlowRun]:
    """Return all scheduled runs: they are read before the first one changes, which would shift pages."""
    waiting = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
    )
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(flow_run_filter=waiting, limit=_PAGE, offset=len(runs))
        runs += page
        if len(page) < _PAGE:
            return runs


def _deployments(client: SyncPrefectClient, pool: str) -> Iterator[tuple[str, DeploymentResponse]]:
    """Iterate over the deployments of Collage's flows in a pool, with the flow's name."""
    in_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    for flow in DEPLOYED:
        count = _PAGE
        offset = 0
        while count == _PAGE:
            page = client.read_deployments(
                flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
                work_pool_filter=in_pool,
                limit=_PAGE,
                offset=offset,
            )
            yield from ((flow, deployment) for deployment in page)
            count = len(page)
            offset += count


def _owner(deployment: DeploymentResponse) -> str:
    """Return the owner's tag, "" without one."""
    return next((tag for tag in deployment.tags if tag.startswith(TAG)), "")


def _is_predecessor(flow: str, deployment: DeploymentResponse, settings: FlowSettings) -> bool:
    """Tell whether it has the plain name that this release's deployment has no longer."""
    return bool(settings.release) and deployment.name == DEPLOYED[flow]


def _check_deployment(
    client: SyncPrefectClient, settings: FlowSettings, path: str, adopt: bool
) -> None:
    try:
        deployment = client.read_deployment_by_name(path)
    except ObjectNotFound:
        return
    owner, own = _owner(deployment), owner_tag(settings)
    if owner and owner != own:
        raise OptionError(
            f"the deployment {path} has the owner {owner.removeprefix(TAG)}, and this installation is "
            f"{own.removeprefix(TAG)} (release/digest of the store's address). {_OTHER_RELEASE} "
            f"{_same_installation(path)}"
        )
    moved = deployment.work_pool_name not in (None, settings.work_pool)
    if moved and not settings.release and not adopt:
        raise OptionError(
            f"the deployment {path} runs in the work pool {deployment.work_pool_name}, and this installation "
            f"has the pool {settings.work_pool}. {_OTHER_RELEASE} {_same_installation(path)}"
        )


_OTHER_RELEASE = (
    "If they are two installations, give each a name of its own: COLLAGE_RELEASE (prefect.release of the "
    "chart)."
)


def _same_installation(path: str) -> str:
    return (
        "If it is the same one with other settings, delete the deployment first: "
        f"prefect deployment delete {path}"
    )


def _foreign_pool(pool: str, path: str, owner: str, *, own: str) -> str:
    return (
        f"the work pool {pool} belongs to another installation of Collage: its deployment {path} has the "
        f"owner {owner.removeprefix(TAG)}, and this one is {own.removeprefix(TAG)} (release/digest of the "
        "store's address). A worker of the pool would run what the other one asks for. Choose another pool: "
        f"COLLAGE_WORK_POOL (prefect.workPool of the chart). {_same_installation(path)}"
    )


def _unowned(pool: str, path: str) -> str:
    return (
        f"the work pool {pool} has the deployment {path} of an installation without a release name. If that "
        "was this installation before it had a name, run `python -m flows.setup --adopt` once: waiting runs "
        "move, and that deployment is deleted. Otherwise choose another pool: COLLAGE_WORK_POOL "
        "(prefect.workPool of the chart)"
    )

"""The runs of this installation on a Prefect server: those of its work pool.

A pool has one owner (`flows.ownership`), so its runs are the installation's, whichever deployment started
them: also one of an earlier name. Runs of other installations are never counted, cancelled or waited for.
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled

PAGE, PAGES = 200, 10
"""Page size and number of pages of the examined runs, the latest first."""


def own_runs(
    client: SyncPrefectClient,
    deployment: DeploymentResponse,
    flow: str,
    states: Collection[StateType] = (),
) -> Iterator[FlowRun]:
    """Iterate over the runs of a flow in the deployment's pool, the latest first.

    Args:
        client: client of the Prefect server.
        deployment: deployment of this installation; without a pool only its own runs are meant.
        flow: name of the flow.
        states: types of states; all without any.
    """
    pool = deployment.work_pool_name
    by_state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states)))
    by_deployment = FlowRunFilterDeploymentId(any_=[deployment.id])
    for page in range(PAGES):
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
            flow_run_filter=FlowRunFilter(
                state=by_state if states else None, deployment_id=None if pool else by_deployment
            ),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])) if pool else None,
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=PAGE,
            offset=page * PAGE,
        )
        yield from runs
        if len(runs) < PAGE:
            return


def cancel_late_runs(client: SyncPrefectClient, deployment: UUID, reason: str) -> list[FlowRun]:
    """Cancel the runs of a deployment that wait although their time has come; return them.

    Such runs pile up while no worker is free, and each would do the same again.
    """
    late = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        expected_start_time=FlowRunFilterExpectedStartTime.model_validate(
            {"before_": datetime.now(UTC)}
        ),
    )
    runs = client.read_flow_runs(flow_run_filter=late, limit=PAGE)
    for run in runs:
        client.set_flow_run_state(run.id, Cancelled(message=reason))
    return runs

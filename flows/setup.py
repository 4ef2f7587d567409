"""`python -m flows.setup`: let the Prefect server know what Collage needs; again, it changes nothing.

work pool               created where it is missing, else left as it is
concurrency limits      one for each measuring environment
zombie automation       runs whose process is gone become Crashed, so that reconcile starts them again
deployments             what prefect.yaml says, with the settings filled in
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events import EventTrigger, Posture
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from collage.errors import CollageError, OptionError
from flows.environments import environment_names
from flows.names import limit_name
from flows.settings import FlowSettings, flow_settings

DEPLOYMENTS = Path(__file__).parent.parent / "prefect.yaml"
ZOMBIES = "collage: crash zombie runs"
SILENCE = timedelta(seconds=540)
"""Three heartbeats of Prefect's default of 180 s: then a run's process is gone."""


def main() -> int:
    """Set the server up; returns the exit code."""
    try:
        settings = flow_settings()
        with get_client(sync_client=True) as client:
            ensure_work_pool(client, settings)
            for name in environment_names(settings):
                client.upsert_global_concurrency_limit_by_name(limit_name(name), settings.slots)
                print(f"limit       {limit_name(name)}: {settings.slots}")
            ensure_automation(client)
        deploy(settings)
    except CollageError as error:
        print(f"flows.setup: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def ensure_work_pool(client: SyncPrefectClient, settings: FlowSettings) -> None:
    """Create the work pool unless it is there: a worker's owner may have adapted it."""
    try:
        pool = client.read_work_pool(settings.work_pool)
    except ObjectNotFound:
        template = base_job_template(client, settings.work_pool_type)
        pool = client.create_work_pool(
            WorkPoolCreate(
                name=settings.work_pool, type=settings.work_pool_type, base_job_template=template
            )
        )
    print(f"work pool   {pool.name} ({pool.type})")


def base_job_template(client: SyncPrefectClient, pool_type: str) -> dict[str, Any]:
    """Return the server's own template for pools of this type; it comes with the server."""
    response = client._client.get("/collections/views/aggregate-worker-metadata")
    response.raise_for_status()
    for workers in response.json().values():
        if pool_type in workers:
            return workers[pool_type]["default_base_job_configuration"]
    raise OptionError(f"this Prefect server knows no work pools of type {pool_type}")


def ensure_automation(client: SyncPrefectClient) -> None:
    """Create the automation, or bring the one of this name up to date."""
    wanted = zombie_automation()
    response = client._client.post(
        "/automations/filter", json={"automations": {"name": {"any_": [ZOMBIES]}}}
    )
    response.raise_for_status()
    found = response.json()
    body = wanted.model_dump(mode="json", exclude={"owner_resource"})
    if not found:
        client._client.post("/automations/", json=body).raise_for_status()
    elif not _holds(found[0], body):
        client._client.put(f"/automations/{found[0]['id']}", json=body).raise_for_status()
    for extra in found[1:]:
        client._client.delete(f"/automations/{extra['id']}").raise_for_status()
    print(f"automation  {ZOMBIES}")


def zombie_automation() -> AutomationCore:
    """Make the automation that Prefect leaves to those who host it themselves."""
    return AutomationCore(
        name=ZOMBIES,
        description="A run that sent a heartbeat and then nothing has lost its process",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": "prefect.flow-run.*"},  # type: ignore[arg-type]
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed",
                state=StateType.CRASHED,
                message="No heartbeat: the flow's process is gone",
                force=False,
            )
        ],
    )


def _holds(found: object, wanted: object) -> bool:
    """Tell whether `found` says all that `wanted` does; the server adds ids and dates."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return all(_holds(found.get(name), value) for name, value in wanted.items())
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_holds, found, wanted))
    return found == wanted


def deploy(settings: FlowSettings) -> None:
    """Apply prefect.yaml. Raises OptionError with Prefect's own words when it is refused."""
    filled = {
        "COLLAGE_WORK_POOL": settings.work_pool,
        "COLLAGE_IMAGE": settings.image,
        "COLLAGE_RECONCILE_CRON": settings.reconcile_cron,
        "COLLAGE_ENVIRONMENT_CRON": settings.environment_cron,
        "COLLAGE_GARBAGE_CRON": settings.garbage_cron,
    }
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*command, "--prefect-file", str(DEPLOYMENTS)],
        env={**os.environ, **filled},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise OptionError(f"prefect deploy failed:\n{done.stdout}{done.stderr}")
    print(f"deployments from {DEPLOYMENTS.name}")


if __name__ == "__main__":
    sys.exit(main())

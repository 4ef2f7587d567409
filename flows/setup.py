"""`python -m flows.setup`: configures the Prefect server for Collage; a repetition changes nothing.

work pool               created if absent, else unchanged
concurrency limits      one for each measuring environment
zombie automation       runs without a process become Crashed, so that reconcile starts them again
deployments             the deployments of prefect.yaml, with the settings filled in
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
"""Silence of a run without a process: three heartbeats of Prefect's default of 180 s."""


def main() -> int:
    """Configure the server; return the exit code."""
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
    """Create the work pool if it is absent; an operator may have adapted an existing one."""
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
    """Return the server's own template for pools of this type."""
    response = client._client.get("/collections/views/aggregate-worker-metadata")
    response.raise_for_status()
    for workers in response.json().values():
        if pool_type in workers:
            template: dict[str, Any] = workers[pool_type]["default_base_job_configuration"]
            return template
    raise OptionError(f"this Prefect server knows no work pools of type {pool_type}")


def ensure_automation(client: SyncPrefectClient) -> None:
    """Create the automation, or update the one of its name."""
    automation = zombie_automation()
    response = client._client.post(
        "/automations/filter", json={"automations": {"name": {"any_": [ZOMBIES]}}}
    )
    response.raise_for_status()
    existing = response.json()
    body = automation.model_dump(mode="json", exclude={"owner_resource"})
    if not existing:
        client._client.post("/automations/", json=body).raise_for_status()
    elif not _holds(existing[0], body):
        client._client.put(f"/automations/{existing[0]['id']}", json=body).raise_for_status()
    for extra in existing[1:]:
        client._client.delete(f"/automations/{extra['id']}").raise_for_status()
    print(f"automation  {ZOMBIES}")


def zombie_automation() -> AutomationCore:
    """Return the automation for crashed runs, which a self-hosted Prefect server lacks."""
    return AutomationCore(
        name=ZOMBIES,
        description="A run that sent a heartbeat and then nothing has lost its process",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
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


def _holds(actual: object, expected: object) -> bool:
    """Tell whether `actual` contains all of `expected`; the server adds ids and dates."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        return all(_holds(actual.get(name), value) for name, value in expected.items())
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_holds, actual, expected))
    return actual == expected


def deploy(settings: FlowSettings) -> None:
    """Apply prefect.yaml. Raises OptionError with Prefect's output if it fails."""
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

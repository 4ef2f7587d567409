"""`python -m flows.setup [--adopt]`: configures the Prefect server for Collage; a repetition changes nothing.

owners                  a pool or deployment of another installation is refused (`flows.ownership`)
work pool               created if absent, else unchanged
queue of reconcile      before all others, one run at a time: long runs do not delay it
queues of teams         behind it, in order of priority
concurrency limits      one for each measuring environment
notification            of failed runs, through the block that the settings name
zombie automation       runs without a process become Crashed, so that reconcile starts them again
deployments             the deployments of prefect.yaml, with the settings filled in

With `--adopt`, deployments without an owner in the pool are this installation's, from before it had a release
name: their waiting runs move to the deployments of today, and they are deleted.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
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
from collage.release_names import released
from flows.environments import environment_names
from flows.names import RECONCILE_QUEUE, limit_name, models_prefix
from flows.notifications import ensure_notification
from flows.ownership import check_owner, owner_tag, retire_predecessors
from flows.settings import FlowSettings, flow_settings
from flows.teams import read_teams, team_queues

DEPLOYMENTS = Path(__file__).parent.parent / "prefect.yaml"
ZOMBIES = "collage: crash zombie runs"
SILENCE = timedelta(seconds=540)
"""Silence of a run without a process: three heartbeats of Prefect's default of 180 s."""


def main(arguments: Sequence[str] = ()) -> int:
    """Configure the server; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.setup")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="deployments without an owner in the pool are this installation's",
    )
    adopt = parser.parse_args(arguments).adopt
    try:
        settings = flow_settings()
        with get_client(sync_client=True) as client:
            configure(client, settings, adopt=adopt)
    except CollageError as error:
        print(f"flows.setup: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def configure(client: SyncPrefectClient, settings: FlowSettings, *, adopt: bool) -> None:
    """Configure the server. Raises OptionError for what belongs to another installation."""
    check_owner(client, settings, adopt=adopt)
    ensure_work_pool(client, settings)
    ensure_queues(client, settings)
    for name in environment_names(settings):
        limit = limit_name(name, settings.release)
        client.upsert_global_concurrency_limit_by_name(limit, settings.slots)
        print(f"limit       {limit}: {settings.slots}")
    ensure_automation(client)
    deploy(settings)
    ensure_notification(client, settings)
    if adopt:
        for path in retire_predecessors(client, settings):
            print(f"deleted     {path}: its waiting runs have moved")


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


def ensure_queues(client: SyncPrefectClient, settings: FlowSettings) -> None:
    """Create or update the queues: that of reconcile first, one run at a time, then those of teams."""
    ensure_queue(client, settings.work_pool, RECONCILE_QUEUE, 1, concurrency_limit=1)
    for priority, name in enumerate(team_queues(read_teams(settings.teams_file)), start=2):
        ensure_queue(client, settings.work_pool, name, priority)


def ensure_queue(
    client: SyncPrefectClient,
    pool: str,
    name: str,
    priority: int,
    *,
    concurrency_limit: int | None = None,
) -> None:
    """Create or update a queue; without a limit here an operator's own limit stays."""
    try:
        queue = client.read_work_queue_by_name(name, work_pool_name=pool)
    except ObjectNotFound:
        client.create_work_queue(
            name, concurrency_limit=concurrency_limit, priority=priority, work_pool_name=pool
        )
    else:
        limit = queue.concurrency_limit if concurrency_limit is None else concurrency_limit
        if (queue.priority, queue.concurrency_limit) != (priority, limit):
            client.update_work_queue(queue.id, priority=priority, concurrency_limit=limit)
    print(f"queue       {name} of {pool}")


def base_job_template(client: SyncPrefectClient, pool_type: str) -> dict[str, Any]:
    """Return the server's own template for pools of this type."""
    for workers in client.read_worker_metadata().values():
        if pool_type in workers:
            template: dict[str, Any] = workers[pool_type]["default_base_job_configuration"]
            return template
    raise OptionError(f"this Prefect server knows no work pools of type {pool_type}")


def ensure_automation(client: SyncPrefectClient) -> None:
    """Create the automation, or update the one of its name."""
    automation = zombie_automation()
    expected = automation.model_dump(mode="json", exclude={"owner_resource"})
    existing = client.read_automations_by_name(ZOMBIES)
    if not existing:
        client.create_automation(automation)
    elif not _holds(existing[0].model_dump(mode="json"), expected):
        client.update_automation(existing[0].id, automation)
    for extra in existing[1:]:
        client.delete_automation(extra.id)
    print(f"automation  {ZOMBIES}")


def zombie_automation() -> AutomationCore:
    """Return the automation for crashed runs, which a self-hosted Prefect server lacks.

    Every field is set: the client's update leaves out fields with a default.
    """
    automation = AutomationCore(
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
    return AutomationCore.model_validate(automation.model_dump())


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
        "COLLAGE_SUFFIX": released("", settings.release),
        "COLLAGE_OWNER": owner_tag(settings),
        "COLLAGE_MODELS": f"{models_prefix(settings.release)}*",
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
    sys.exit(main(sys.argv[1:]))

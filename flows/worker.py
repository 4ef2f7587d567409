"""`python -m flows.worker`: a Prefect worker of this installation's pool.

A worker runs what its pool's deployments ask for, with its own store, registry and cluster. So this program
refuses a pool with deployments of another installation, and then becomes `prefect worker start`.

    python -m flows.worker --limit 2 --with-healthcheck      flows of all queues
    python -m flows.worker --limit 1 --work-queue reconcile  only reconcile, however busy the first one is
"""

import os
import sys
from collections.abc import Sequence

import httpx
from prefect.client.orchestration import get_client

from collage.errors import CollageError
from flows.ownership import check_pool
from flows.settings import FlowSettings, flow_settings


def main(arguments: Sequence[str]) -> int:
    """Check the pool and become the worker; return the exit code where that cannot be.

    Without an answer of Prefect the owner is unknown, and the caller has to try again: a restarted pod does.

    Args:
        arguments: further arguments of `prefect worker start`.
    """
    try:
        settings = flow_settings()
        with get_client(sync_client=True) as client:
            check_pool(client, settings)
    except CollageError as error:
        print(f"flows.worker: {error}", file=sys.stderr)
        return error.exit_code
    except httpx.HTTPError as error:
        print(f"flows.worker: Prefect does not tell the pool's owner: {error}", file=sys.stderr)
        return 1
    command = [*worker_command(settings), *arguments]
    os.execv(command[0], command)


def worker_command(settings: FlowSettings) -> list[str]:
    """Return the command of a worker of the settings' pool; flows run as its child processes."""
    prefect = [sys.executable, "-m", "prefect", "--no-prompt", "worker", "start"]
    return [
        *prefect,
        "--pool",
        settings.work_pool,
        "--type",
        "process",
        "--install-policy",
        "never",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

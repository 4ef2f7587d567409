"""Deletion of the release's measuring Jobs, the last step before an uninstall.

A release's Jobs are those whose pods run as one of its ServiceAccounts for Jobs, so another release in the
same namespace keeps its own. What they measured is in the store; an unfinished batch is measured by the
next run.
A Job that a flow makes after this goes away with its ttl.
"""

import os
import sys
from collections.abc import Sequence

from kubernetes import client

from collage.cluster.kubernetes.api import open_client

SELECTOR = "app.kubernetes.io/part-of=collage,collage.dev/run"


def main() -> int:
    """Delete the Jobs and print their names."""
    namespace = os.environ["COLLAGE_CLUSTER__NAMESPACE"]
    names = ("COLLAGE_CLUSTER__SERVICE_ACCOUNT", "COLLAGE_CLUSTER__FINISH_SERVICE_ACCOUNT")
    accounts = [os.environ[name] for name in names if name in os.environ]
    for name in delete_jobs(client.BatchV1Api(open_client()), namespace, accounts):
        print(f"deleted job {name}")
    return 0


def delete_jobs(api: client.BatchV1Api, namespace: str, accounts: Sequence[str]) -> list[str]:
    """Delete the Jobs of these accounts and their pods; return the names."""
    deleted = []
    for job in api.list_namespaced_job(namespace, label_selector=SELECTOR).items:
        pod = job.spec.template.spec if job.spec else None
        name = job.metadata.name if job.metadata else None
        if pod is None or not name or pod.service_account_name not in accounts:
            continue
        try:
            api.delete_namespaced_job(name, namespace, propagation_policy="Background")
        except client.ApiException as error:
            if error.status != 404:  # its ttl was faster
                raise
        deleted.append(name)
    return deleted


if __name__ == "__main__":
    sys.exit(main())

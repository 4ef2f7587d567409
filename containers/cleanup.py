"""Deletion of the release's measuring Jobs, the last step before an uninstall.

    python -m containers.cleanup [JOB ...]      # further Jobs: a failed set-up stays for its logs until then

A release's Jobs are those whose pods run as one of its ServiceAccounts for Jobs, so another release in the
same namespace keeps its own. What they measured is in the store; an unfinished batch is measured by the
next run.
A Job that a flow makes after this goes away with its ttl.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from kubernetes import client

from collage.cluster.kubernetes.api import open_client

SELECTOR = "app.kubernetes.io/part-of=collage,collage.dev/run"


def main() -> int:
    """Delete the Jobs and print their names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="a further Job to delete")
    further = parser.parse_args().jobs
    namespace = os.environ["COLLAGE_CLUSTER__NAMESPACE"]
    names = ("COLLAGE_CLUSTER__SERVICE_ACCOUNT", "COLLAGE_CLUSTER__FINISH_SERVICE_ACCOUNT")
    accounts = [os.environ[name] for name in names if name in os.environ]
    api = client.BatchV1Api(open_client())
    for name in [*delete_jobs(api, namespace, accounts), *delete_named(api, namespace, further)]:
        print(f"deleted job {name}")
    return 0


def delete_jobs(api: client.BatchV1Api, namespace: str, accounts: Sequence[str]) -> list[str]:
    """Delete the Jobs of these accounts and their pods; return the names."""
    names = []
    for job in api.list_namespaced_job(namespace, label_selector=SELECTOR).items:
        pod = job.spec.template.spec if job.spec else None
        name = job.metadata.name if job.metadata else None
        if pod is not None and name and pod.service_account_name in accounts:
            names.append(name)
    delete_named(api, namespace, names)
    return names


def delete_named(api: client.BatchV1Api, namespace: str, names: Sequence[str]) -> list[str]:
    """Delete these Jobs and their pods; return the names of those that were there."""
    deleted = []
    for name in names:
        try:
            api.delete_namespaced_job(name, namespace, propagation_policy="Background")
        except client.ApiException as error:
            if error.status != 404:  # its ttl was faster
                raise
        else:
            deleted.append(name)
    return deleted


if __name__ == "__main__":
    sys.exit(main())

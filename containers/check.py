"""Checks of `helm test` in the controller image: rights, store, Prefect and deployments of the flows.

python -m containers.check prefect         # server reachable, work pool and deployments there
python -m containers.check permissions     # the verbs that are needed, and none beyond them
"""

import argparse
import os
import sys
from collections.abc import Iterator

from collage.release_names import OPTIMIZE_DEPLOYMENT, released

NEEDED = {
    ("batch", "jobs", ""): ("create", "get", "list", "delete"),
    ("", "pods", ""): ("get", "list"),
    ("", "pods", "log"): ("get",),
    ("", "events", ""): ("list",),
}
"""Verbs of the chart's Role by (API group, resource, sub-resource)."""
FORBIDDEN = {
    ("batch", "jobs", ""): ("update", "patch", "deletecollection"),
    ("", "secrets", ""): ("get", "list", "watch"),
    ("", "pods", ""): ("create", "delete", "deletecollection"),
    ("", "pods", "exec"): ("create",),
    ("", "serviceaccounts", ""): ("impersonate",),
    ("", "serviceaccounts", "token"): ("create",),
    ("", "configmaps", ""): ("get", "update"),
    ("apps", "deployments", ""): ("get", "patch"),
    ("rbac.authorization.k8s.io", "roles", ""): ("create", "bind", "escalate"),
    ("rbac.authorization.k8s.io", "rolebindings", ""): ("create",),
}
DEPLOYMENTS = (OPTIMIZE_DEPLOYMENT, "reconcile-registry/reconcile", "collect-garbage/garbage")
"""Required deployments, as `flow/name` without the release."""


def main() -> int:
    """Run one check; print its error, if any, and return 1 for an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=("prefect", "permissions"))
    check = _prefect if parser.parse_args().check == "prefect" else _permissions
    problems = list(check())
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    if not problems:
        print("all is as it must be")
    return 1 if problems else 0


def _prefect() -> Iterator[str]:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    pool = os.environ["COLLAGE_WORK_POOL"]
    with get_client(sync_client=True) as server:
        try:
            server.read_work_pool(pool)
        except ObjectNotFound:
            yield f"the work pool {pool} is not there: run python -m flows.setup"
        for name in DEPLOYMENTS:
            path = released(name, os.environ.get("COLLAGE_RELEASE", ""))
            try:
                deployment = server.read_deployment_by_name(path)
            except ObjectNotFound:
                yield f"the deployment {path} is not there: run python -m flows.setup"
                continue
            if deployment.work_pool_name != pool:
                yield (
                    f"the deployment {path} runs in the pool {deployment.work_pool_name}, and the worker "
                    f"polls {pool}: run python -m flows.setup"
                )


def _permissions() -> Iterator[str]:
    from kubernetes import client

    from collage.cluster.kubernetes.api import open_client

    api = client.AuthorizationV1Api(open_client())
    namespace = os.environ["COLLAGE_CLUSTER__NAMESPACE"]
    for table, expected in ((NEEDED, True), (FORBIDDEN, False)):
        for (group, resource, sub), verbs in table.items():
            for verb in verbs:
                attributes = client.V1ResourceAttributes(
                    namespace=namespace, group=group, resource=resource, subresource=sub, verb=verb
                )
                review = client.V1SelfSubjectAccessReview(
                    spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
                )
                status = api.create_self_subject_access_review(review).status
                allowed = status is not None and status.allowed
                if allowed != expected:
                    action = f"{verb} {resource}{'/' * bool(sub)}{sub}"
                    yield f"this account may {'' if allowed else 'not '}{action} in {namespace}"


if __name__ == "__main__":
    sys.exit(main())

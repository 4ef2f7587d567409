"""The Jobs of flows, as a worker makes them with the settings that the chart gives it."""

import json
import re

from kubernetes import client

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.manifests import JobTask, Kind, job_manifest
from tests.helm import charts

PREFIX = "COLLAGE_CLUSTER__"


def settings(values, namespace="ns"):
    """Return the cluster settings of the worker's environment, with references expanded as a kubelet does."""
    worker = dict(charts.pods(charts.render(values, namespace=namespace)))["collage-worker"]
    variables = {
        variable["name"].removeprefix(PREFIX).lower(): re.sub(
            r"\$(\$)?\(", lambda match: "$(" if match[1] else "<expanded>", variable["value"]
        )
        for variable in worker["containers"][0]["env"]
        if variable["name"].startswith(PREFIX) and variable.get("value")
    }
    parsed = {
        name: json.loads(value) if value[0] in "[{" else value for name, value in variables.items()
    }
    return ClusterSettings(namespace=namespace, **parsed)


def job(kind, values, namespace="ns", environment=None):
    """Return the manifest of a Job in a namespace, as it is sent."""
    task = JobTask(kind, f"collage-{kind}", {"run": "r"}, [], compiles=kind is Kind.BUILD)
    environment = environment or MeasuringEnvironment(gpu_resource="nvidia.com/gpu")
    with client.ApiClient() as api:
        return api.sanitize_for_serialization(
            job_manifest(task, environment, settings(values, namespace))
        )


def templates(values, kinds=tuple(Kind), environment=None):
    """Return the pod templates of Jobs, by the kind of Job."""
    return {
        str(kind): job(kind, values, environment=environment)["spec"]["template"] for kind in kinds
    }

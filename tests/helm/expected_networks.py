"""The expected network connections of every pod of the chart and of the flows' Jobs."""

import json

from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.manifests import JobTask, Kind, job_manifest
from tests.helm import charts
from tests.helm.networks import ANYWHERE, Connection, connections

MLFLOW = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "mlflow"}}}
VALUES = {
    "image": {"repository": "registry.example.com/collage"},
    "store": {"uri": "s3://b/p?endpoint=http://minio:9000&addressing=path"},
    "prefect": {"apiUrl": "http://prefect:4200/api"},
    "signing": {"existingSecret": "signing"},
    "registry": {"uri": "mlflow://", "trackingUri": "http://mlflow:5000"},
    "receiver": {"existingSecret": "webhook", "from": [MLFLOW]},
    "networkPolicy": {"apiServerPorts": [6443]},
}


def peer(content):
    return json.dumps(content, sort_keys=True)


NOT_LINK_LOCAL = (
    {"namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::/32"]}},
)
RESOLVERS = (
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
)


def out(port, peers=NOT_LINK_LOCAL):
    return {Connection(peer(address), f"TCP {port}") for address in peers}


DNS = {
    Connection(peer(resolver), f"{kind} 53") for resolver in RESOLVERS for kind in ("UDP", "TCP")
}
STORE, PREFECT, REGISTRY = out(9000), out(4200), out(5000)
SERVER = {Connection(ANYWHERE, "TCP 6443")}
FLOWS = DNS | STORE | PREFECT | REGISTRY
WEBHOOKS = {Connection(peer(MLFLOW), "TCP http")}
EXPECTED = {
    "worker": (set(), FLOWS | SERVER),
    "receiver": (WEBHOOKS, DNS | PREFECT),
    "set-up": (set(), FLOWS),
    "clean-up": (set(), FLOWS | SERVER),
    "test": (set(), FLOWS | SERVER),
    **{str(kind): (set(), DNS | STORE) for kind in Kind},
}
"""Component of a pod -> what may come in, and where it may go."""
SERVERS = ("10.96.0.1", "172.20.0.1", "192.168.1.10", "169.254.169.254")
"""Kubernetes' API server as pods see it in common clusters, and a cloud's metadata."""


def pods(values):
    """List labels of all pods: those of the chart's manifests, and of the Jobs that flows make."""
    for manifest in charts.render(values):
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["labels"]
        elif template := manifest.get("spec", {}).get("template"):
            yield template["metadata"]["labels"]
    settings = ClusterSettings(namespace="ns", measure_image="m", controller_image="c")
    for kind in Kind:
        job = job_manifest(JobTask(kind, "job", {"run": "r"}, []), MeasuringEnvironment(), settings)
        yield job.spec.template.metadata.labels


def component(labels):
    return labels["app.kubernetes.io/component"]


def allowed(actual, labels):
    return tuple(connections(actual, labels, direction) for direction in ("Ingress", "Egress"))

"""The chart rendered by Helm 4 (embedded by helm-python-sdk), and by Helm 3 where there is one."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tests.servers import binaries

CHART = Path(__file__).parents[2] / "helm" / "collage"
EXAMPLES = sorted(file.stem for file in (CHART / "examples").glob("*.yaml"))
HOSTILE = {
    file.stem: yaml.safe_load(file.read_text())
    for file in sorted((Path(__file__).parent / "hostile").glob("*.yaml"))
}
"""Values of clusters that the chart's authors do not have."""
VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
FOREIGN = {"ServiceMonitor", "PrometheusRule", "LocalQueue", "ExternalSecret", "HTTPRoute",
           "PodMonitor"}  # fmt: skip
"""Kinds that others bring: no validation of Kubernetes' own knows them."""
HELM3 = binaries.Recipe("helm.sh/helm/v3", "v3.22.0", "helm.sh/helm/v3/cmd/helm")
ENOUGH: Mapping[str, Any] = {
    "image": {"repository": "registry.example.com/collage"},
    "store": {"uri": "s3://models/collage"},
    "prefect": {"apiUrl": "http://prefect-server.prefect:4200/api"},
    "signing": {"existingSecret": "signing"},
}
"""The values that are enough."""
ALL: Mapping[str, Any] = {
    **ENOUGH,
    "store": {
        **ENOUGH["store"],
        "existingSecret": "store",
        "measuring": {"existingSecret": "measure"},
    },
    "receiver": {"existingSecret": "webhook"},
    "podDisruptionBudget": {"enabled": True},
}
"""All that the chart makes of Kubernetes' own kinds."""
EXTRAS: Mapping[str, Any] = {
    **ALL,
    "extraEnv": [
        {"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"},
        {"name": "LICENCE", "valueFrom": {"secretKeyRef": {"name": "licence", "key": "text"}}},
        {"name": "SITE", "valueFrom": {"configMapKeyRef": {"name": "site", "key": "name"}}},
    ],
    "extraVolumes": [
        {"name": "site", "configMap": {"name": "site"}},
        {"name": "licence", "secret": {"secretName": "licence", "optional": True}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
    ],
    "extraVolumeMounts": [
        {"name": "site", "mountPath": "/etc/site", "readOnly": True},
        {"name": "licence", "mountPath": "/etc/licence", "readOnly": True},
        {"name": "cache", "mountPath": "/cache"},
    ],
    "caBundle": {"configMap": "company-ca"},
    "podLabels": {"team": "ml"},
    "podAnnotations": {"example.com/owner": "ml"},
    "admissionPolicy": {"extraSecrets": ["licence"]},
}
"""Parts of all pods beside the chart's own."""
WITHOUT_HOOKS: Mapping[str, Any] = {**ALL, "setup": {"enabled": False, "cleanUp": False}}
"""For an API server without nodes: hooks would wait for their pods."""

Manifest = dict[str, Any]


def example(name: str) -> dict[str, Any]:
    return yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())


def render(
    values: Mapping[str, Any], name: str = "collage", namespace: str = "ns"
) -> list[Manifest]:
    """Return all manifests, hooks and tests among them."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=name, namespace=namespace)
    texts = [text for file, text in sorted(files.items()) if file.endswith(".yaml")]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest]


def notes(values: Mapping[str, Any]) -> str:
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(dict(values), name="collage", namespace="ns")[
            "collage/templates/NOTES.txt"
        ]


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """List the pods' specs with the names of what makes them."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            yield manifest["metadata"]["name"], manifest["spec"]
        elif template := manifest.get("spec", {}).get("template"):
            yield manifest["metadata"]["name"], template["spec"]


def helm3() -> Path:
    """Find Helm 3: installed, or built once. Raises binaries.Unavailable."""
    installed = shutil.which("helm")
    if installed and run(Path(installed), "version", "--short").startswith("v3."):
        return Path(installed)
    binaries.RECIPES.setdefault("helm", HELM3)
    return binaries.find("helm")


def run(helm: Path, *arguments: str, kubeconfig: Path | None = None, check: bool = True) -> str:
    """Run Helm and return what it says, errors too. Raises AssertionError where it fails, with `check`."""
    done = subprocess.run(
        [helm, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}),
        },
    )
    said = done.stdout + done.stderr
    assert not check or done.returncode == 0, said
    return said


def write_values(folder: Path, values: Mapping[str, Any]) -> Path:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    return file

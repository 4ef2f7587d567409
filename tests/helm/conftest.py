"""A namespace of a real API server, and Helm in it."""

import helm_python
import pytest

from tests.helm import charts
from tests.servers.fixtures import or_skip, plane

__all__ = ["plane"]

RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


@pytest.fixture
def namespace(plane, request):
    return plane.make_namespace(f"t{abs(hash(request.node.name)) % 10**8}", RESTRICTED)


@pytest.fixture
def kubeconfig(plane, namespace, tmp_path):
    return plane.kubeconfig(tmp_path / "kubeconfig", namespace=namespace)


@pytest.fixture
def helm4(kubeconfig, namespace):
    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        yield config


@pytest.fixture
def helm3(kubeconfig):
    with or_skip():
        actual = charts.helm3()
    return lambda *arguments: charts.run(actual, *arguments, kubeconfig=kubeconfig)

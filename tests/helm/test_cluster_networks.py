"""Connections of clusters with names and credentials elsewhere: OpenShift's ports, EKS Pod Identity."""

import json

import pytest

from tests.helm import charts
from tests.helm.charts import HOSTILE
from tests.helm.expected_networks import DNS, PREFECT, VALUES, allowed, component, peer, pods
from tests.helm.networks import Connection, connections, policies


def egress(values, name):
    actual = policies(charts.render(values))
    labels = next(pod for pod in pods(values) if component(pod) == name)
    return connections(actual, labels, "Egress")


def test_names_are_resolved_on_the_ports_of_openshift():
    for name in ("worker", "measure", "receiver"):
        ports = {connection.port for connection in egress(HOSTILE["openshift"], name)}
        assert {"UDP 5353", "TCP 5353"} <= ports
        assert not {"UDP 53", "TCP 53"} & ports


AGENT = json.dumps({"ipBlock": {"cidr": "169.254.170.23/32"}}, sort_keys=True)


@pytest.mark.parametrize(
    ("change", "is_open"),
    [
        ({}, True),
        ({"store": {"uri": "s3://b/p?endpoint=https://s3.example.com"}}, False),
        ({"store": {"uri": "s3://b/p", "existingSecret": "s", "measuring": {"shareSecret": True}}}, False),
        ({"serviceAccounts": {"controller": {"annotations": {"eks.amazonaws.com/role-arn": "r"}}}}, False),
        ({"networkPolicy": {"podIdentity": False}}, False),
        ({"store": {"uri": "s3://b/p?endpoint=https://vpce.example.com"},
          "networkPolicy": {"podIdentity": True}}, True),
    ],
)  # fmt: skip
def test_pod_identity_is_reached_where_it_gives_the_role(change, is_open):
    for name in ("worker", "measure", "finish"):
        actual = egress({**charts.ENOUGH, **change}, name)
        assert (Connection(AGENT, "TCP 80") in actual) is is_open
        for address in ("169.254.169.254", "169.254.170.2", "fd00:ec2::254"):
            assert not any(connection.leads_to(address, 80) for connection in actual)


def test_the_exporter_is_read_and_asks_prefect_alone():
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prom"}}}
    values = {**VALUES, "metrics": {"enabled": True, "from": [monitoring]}}
    actual = policies(charts.render(values))
    (labels,) = [pod for pod in pods(values) if component(pod) == "metrics"]
    assert allowed(actual, labels) == ({Connection(peer(monitoring), "TCP status")}, DNS | PREFECT)

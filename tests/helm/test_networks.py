"""Who may talk to whom: for every pod that the chart or a flow makes, exactly this and nothing else."""

import copy
import json

import pytest

from collage.cluster.kubernetes.manifests import Kind
from tests.helm import charts
from tests.helm.expected_networks import (
    DNS,
    EXPECTED,
    MLFLOW,
    SERVERS,
    VALUES,
    WEBHOOKS,
    allowed,
    component,
    peer,
    pods,
)
from tests.helm.networks import ANYWHERE, Connection, connections, policies, selects

kubernetes = pytest.importorskip("kubernetes")


def test_every_pod_may_do_what_is_stated_and_nothing_else():
    actual = policies(charts.render(VALUES))
    listed = list(pods(VALUES))
    assert {component(labels) for labels in listed} == set(EXPECTED)
    assert len(listed) == len(EXPECTED) + 2  # three pods of `helm test`
    for labels in listed:
        assert allowed(actual, labels) == EXPECTED[component(labels)], component(labels)


def test_each_policy_is_needed_and_a_wrong_label_is_seen():
    """Without any one policy, or with a selector that misses, the table above does not hold."""
    actual = policies(charts.render(VALUES))
    listed = list(pods(VALUES))

    def holds(subset):
        return all(allowed(subset, labels) == EXPECTED[component(labels)] for labels in listed)

    assert holds(actual)
    for number in range(len(actual)):
        assert not holds(actual[:number] + actual[number + 1 :]), actual[number]["metadata"]["name"]
        wrong = copy.deepcopy(actual)
        wrong[number]["spec"]["podSelector"]["matchLabels"] = {"app.kubernetes.io/name": "colage"}
        assert not holds(wrong)
    loose = {"app.kubernetes.io/name": "collage"}
    assert allowed(actual, loose) == (None, None)


@pytest.mark.parametrize("name", charts.EXAMPLES)
def test_no_pod_of_an_example_is_left_open(name):
    values = charts.example(name)
    actual = policies(charts.render(values))
    for labels in pods(values):
        into, outside = allowed(actual, labels)
        assert None not in (into, outside), component(labels)
        assert not into or component(labels) in ("receiver", "metrics")
        assert all(connection.port != "all" for connection in into | outside)
        assert outside >= DNS


METADATA = ("169.254.169.254", "169.254.170.2", "fd00:ec2::254")


@pytest.mark.parametrize("name", [*charts.EXAMPLES, None])
def test_no_pod_reaches_a_clouds_metadata_over_its_ports(name):
    """Whose answers are credentials of the node: no port but the API server's leads there."""
    values = charts.example(name) if name else charts.ENOUGH
    actual = policies(charts.render(values))
    for labels in pods(values):
        outside = connections(actual, labels, "Egress")
        ports = {connection.port for connection in outside} - {"TCP 443", "TCP 6443", "UDP 53"}
        for address in METADATA:
            reached = [d for d in outside for p in ports if d.leads_to(address, p.split()[1])]
            assert not reached, (address, reached)
        if component(labels) in set(Kind):
            assert not any(d.leads_to(a, 443) for d in outside for a in METADATA)


def test_names_are_resolved_where_the_values_say():
    namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dns"}}}
    for to, expected in (([namespace], {peer(namespace)}), ([], {ANYWHERE})):
        values = {**VALUES, "networkPolicy": {"dnsTo": to}}
        actual = policies(charts.render(values))
        measuring = next(pod for pod in pods(values) if component(pod) == "measure")
        requested = {d.peer for d in connections(actual, measuring, "Egress") if d.port == "UDP 53"}
        assert requested == expected


def test_webhooks_and_metrics_come_from_where_the_values_say():
    cluster, monitoring = {"namespaceSelector": {}}, {"podSelector": {"matchLabels": {"a": "b"}}}
    for metrics, receiver, expected in (
        ({}, {}, {Connection(peer(cluster), "TCP http")}),
        ({}, {"from": []}, {Connection(ANYWHERE, "TCP http")}),
        ({"enabled": True}, {"from": [MLFLOW]}, WEBHOOKS | {Connection(peer(cluster), "TCP status")}),
        ({"enabled": True, "from": [monitoring]}, {},
         {Connection(peer(cluster), "TCP http"), Connection(peer(monitoring), "TCP status")}),
    ):  # fmt: skip
        values = {**VALUES, "metrics": metrics, "receiver": {"existingSecret": "w", **receiver}}
        actual = policies(charts.render(values))
        labels = next(pod for pod in pods(values) if component(pod) == "receiver")
        assert connections(actual, labels, "Ingress") == expected


@pytest.mark.parametrize("name", ["aws-irsa", "laptop", "s3-compatible"])
def test_pods_of_jobs_of_an_example_reach_no_api_server(name):
    values = charts.example(name)
    actual = policies(charts.render(values))
    of_jobs = [pod for pod in pods(values) if component(pod) in set(Kind)]
    assert len(of_jobs) == len(Kind)
    for labels in of_jobs:
        outside = connections(actual, labels, "Egress")
        for address in SERVERS:
            reached = [
                connection
                for connection in outside
                for port in (443, 6443)
                if connection.leads_to(address, port)
            ]
            assert not reached, (address, reached)
    worker = next(labels for labels in pods(values) if component(labels) == "worker")
    assert any(
        connection.leads_to(SERVERS[0], 443) for connection in connections(actual, worker, "Egress")
    )


def test_the_store_may_be_a_place():
    place = {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.1/32"]}}
    values = {**VALUES, "networkPolicy": {"storeTo": [place], "extraPorts": [8443]}}
    actual = policies(charts.render(values))
    measuring = next(pod for pod in pods(values) if component(pod) == "measure")
    outside = connections(actual, measuring, "Egress") - DNS
    assert {(connection.peer, connection.port) for connection in outside} == {
        (json.dumps(place, sort_keys=True), port) for port in ("TCP 9000", "TCP 8443")
    }
    for address, port, reached in (
        ("192.0.2.7", 9000, True), ("192.0.2.1", 9000, False), ("192.0.3.1", 9000, False),
        ("192.0.2.7", 443, False),
    ):  # fmt: skip
        assert any(connection.leads_to(address, port) for connection in outside) is reached


def test_the_ports_of_the_policies_are_ports_of_the_pods():
    manifests = charts.render(VALUES)
    specs = dict(charts.pods(manifests))
    named = {policy["name"] for policy in specs["collage-receiver"]["containers"][0]["ports"]}
    assert "http" in named
    for policy in policies(manifests):
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= named


def test_selectors_are_understood():
    labels = {"a": "1", "b": "2"}
    for selector, fits in (
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "1", "c": "3"}}, False),
        ({"matchExpressions": [{"key": "b", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["2"]}]}, False),
        ({"matchExpressions": [{"key": "c", "operator": "Exists"}]}, False),
    ):
        assert selects(selector, labels) is fits, selector

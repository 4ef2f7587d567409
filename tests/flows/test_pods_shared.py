"""A flow on three functions on a cluster: their searches take turns, and measure nothing twice."""

from itertools import chain

import pytest
import yaml
from kubernetes import client as kubernetes

pytest.importorskip("prefect")

from collage.cluster.shards import Batch
from collage.store import open_store
from collage.store.blobs import get_blob
from tests.cluster.conftest import namespace, nodes  # noqa: F401
from tests.flows.runs import Runs
from tests.servers.fixtures import plane  # noqa: F401
from tests.support.costs import KEY
from tests.support.entry_models import write_net

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

PODS = 1
"""Fewer than nodes: searches side by side would use both of these."""
ENVIRONMENT = {
    "threads": 1, "cpu": 1, "memory": "1Gi", "nodeSelector": {"pool": "measure"}, "parallelism": PODS,
    "secondsPerShard": 20, "deadlineSeconds": 300, "controlTolerance": 100,
}  # fmt: skip
SHAPES = [{"encoder/x": [4, 48], "decoder/x": [4, 48]}, {"decoder/x": [6, 48]}]


@pytest.fixture
def runs(plane, namespace, nodes, server, limit, s3_address, tmp_path):  # noqa: F811
    limit("pool")
    (tmp_path / "environments.yaml").write_text(yaml.safe_dump({"pool": ENVIRONMENT}))
    plane.kubeconfig(tmp_path / "kubeconfig", namespace=namespace)
    cluster = {
        "NAMESPACE": namespace, "MEASURE_IMAGE": "collage/measure:1", "POLL_S": "0.5",
        "CONTROLLER_IMAGE": "collage/controller:1", "ENV_FROM_SECRETS": '["store"]',
        "FINISH_ENV_FROM_SECRETS": '["finish"]',
    }  # fmt: skip
    created = Runs(server, s3_address, tmp_path / "runs", shapes=SHAPES, measure_budget_s=5)
    created.tell({
        "COLLAGE_ENVIRONMENTS_FILE": str(tmp_path / "environments.yaml"), "COLLAGE_RECORD_KEY": KEY,
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        **{f"COLLAGE_CLUSTER__{name}": value for name, value in cluster.items()},
    })  # fmt: skip
    return created


def test_searches_of_a_run_share_pods_and_costs(runs, plane, namespace, capsys):  # noqa: F811
    speech = runs.folder / "speech"
    speech.mkdir()
    for name, last in (("encoder", "Tanh"), ("decoder", "Abs")):
        write_net(speech / f"{name}.onnx", last)
    runs.model = f"{speech}/"
    actual = runs.end(runs.start(), 500)
    assert actual["state"] == "Completed", (actual, (runs.folder / "cache.log").read_text())
    with plane.client() as api:
        jobs = measuring(kubernetes.BatchV1Api(api).list_namespaced_job, namespace)
        pods = measuring(kubernetes.CoreV1Api(api).list_namespaced_pod, namespace)
    store = open_store(runs.address, writes=False)
    batches = [batch_of(store, job) for job in jobs]
    assert {batch.function for batch in batches} == {"decoder", "decoder_1", "encoder"}
    keys = [request.key for batch in batches for request in chain(*batch.shards)]
    assert len(keys) == len(set(keys)), "each candidate is in one Job"
    assert set(runs.costs().values()) == {1}
    most = most_at_once(pods)
    with capsys.disabled():
        print(f"\n  {len(jobs)} Jobs, {len(pods)} pods, {most} at once; {len(keys)} candidates")
    assert most <= PODS


def measuring(list_of, namespace):  # noqa: F811
    return list_of(namespace, label_selector="app.kubernetes.io/component=measure").items


def batch_of(store, job):
    text = get_blob(store, job.metadata.annotations["collage.dev/batch"])
    return Batch.model_validate_json(text)


def most_at_once(pods):
    """Return the largest number of pods whose containers ran at one time, to the second."""
    ran = [pod.status.container_statuses[0].state.terminated for pod in pods]
    spans = [(state.started_at, state.finished_at) for state in ran]
    return max(sum(begin <= start < end for begin, end in spans) for start, _ in spans)

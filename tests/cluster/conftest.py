"""A cluster of two played nodes on a real control plane, a real S3 server, and a small model."""

import itertools
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from kubernetes import client

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kubernetes.api import Jobs
from collage.measure.cache_flush import CacheFlush
from collage.measure.cost_key import CostKeys
from collage.pipeline.request import RequestOptions, submit
from collage.store import open_store
from tests.servers import fixtures
from tests.servers.node import Node
from tests.store import versitygw
from tests.store.conftest import address_below, bucket, credentials, s3_address, s3_server  # noqa: F401
from tests.support.costs import KEY, cost_lines
from tests.support.models import small_model

IMAGES = {
    "collage/measure:1": [sys.executable, "-m", "containers.measure"],
    "collage/controller:1": [sys.executable],
}
NO_SWEEP = CacheFlush(0)
_namespaces = itertools.count(1)
plane = fixtures.plane


@pytest.fixture(autouse=True)
def record_key(monkeypatch):
    """The key that the controller and its pods share; those find it in their Secret."""
    monkeypatch.setenv("COLLAGE_RECORD_KEY", KEY)


@pytest.fixture(scope="package")
def nodes(plane, tmp_path_factory):
    labels = {"pool": "measure"}
    started = [
        Node(plane, name, tmp_path_factory.mktemp(name), images=IMAGES, labels=labels)
        for name in ("node-1", "node-2")
    ]
    yield started
    for node in started:
        node.close()


@pytest.fixture
def namespace(plane):
    """A namespace of the test's own that enforces the strictest pod security."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    name = plane.make_namespace(f"collage-{next(_namespaces)}", labels)
    with plane.client() as api:
        for secret, user in (("store", "measure"), ("finish", "finish")):
            client.CoreV1Api(api).create_namespaced_secret(name, _credentials_of(secret, user))
        yield name
        client.CoreV1Api(api).delete_namespace(name)


def _credentials_of(name, user):
    """The Secret `name` with the keys of a user who may write what such pods write, and no more."""
    keys = {
        "AWS_ACCESS_KEY_ID": user,
        "AWS_SECRET_ACCESS_KEY": versitygw.USERS[user],
        "AWS_EC2_METADATA_DISABLED": "true",
        "COLLAGE_RECORD_KEY": KEY,
    }
    return {"metadata": {"name": name}, "stringData": keys}


@pytest.fixture
def core(plane):
    with plane.client() as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def jobs(plane, namespace):
    with plane.client() as api:
        yield Jobs(namespace, api, patience_s=60)


@pytest.fixture
def settings(namespace):
    return ClusterSettings(
        namespace=namespace,
        measure_image="collage/measure:1",
        controller_image="collage/controller:1",
        env_from_secrets=("store",),
        finish_env_from_secrets=("finish",),
        poll_s=0.3,
    )


@pytest.fixture
def environment():
    return MeasuringEnvironment(
        threads=1,
        cpu=1,
        memory="1Gi",
        node_selector={"pool": "measure"},
        parallelism=2,
        seconds_per_shard=20,
        deadline_seconds=200,
        control_tolerance=100,  # tests share this machine with whatever else runs on it
    )


def named_keys(backends, environment, sweep=NO_SWEEP):
    """Keys of requests for a function "main" without a graph; `backends` are identities by name."""
    return CostKeys(
        [SimpleNamespace(name="main")],
        [SimpleNamespace(name=name, identity=identity) for name, identity in backends.items()],
        environment,
        sweep,
        digest=lambda function, nodes: str(nodes),
    )


def measured(store, environment=None):
    """How often each key was measured, by what is in the store.

    What a call costs is of no candidate, and several pods that start at once measure it: with an
    environment it is left out.
    """
    counts = Counter()
    for entry in store.entries("costs/"):
        counts.update(line.key for line in cost_lines(store.read(entry.key).data))
    if environment is not None:
        del counts[CostKeys([], [], environment, NO_SWEEP).boundary]
    return counts


@pytest.fixture
def store(s3_address):  # noqa: F811
    return open_store(s3_address)


@pytest.fixture
def request_(store, tmp_path):
    """A small model and a budget that lets a search end, on two backends that build fast."""
    options = RequestOptions(
        backends=("onnxruntime", "onednn"), measure_budget_s=25, refine_s=0, verify_s=0.1
    )
    model = small_model(tmp_path / "small.onnx")
    return submit(store, model, environment="pool", options=options)


@pytest.fixture
def notices():
    return []


@pytest.fixture
def make_service(s3_address, tmp_path_factory, settings, environment, jobs, notices):  # noqa: F811
    """Make a compile service as another process would: with an empty folder of its own."""

    def make(environment=environment, **changes):
        return ClusterCompileService(
            s3_address,
            tmp_path_factory.mktemp("controller"),
            settings.model_copy(update=changes),
            {"pool": environment},
            jobs=jobs,
            notice=notices.append,
        )

    return make

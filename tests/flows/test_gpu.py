"""A flow for a pool of GPUs, on the real control plane with a simulated GPU: its bundle has GPU kernels."""

import json
import time

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("prefect")

from collage.backends.nvidia.libraries import driver_reason
from collage.cluster.shards import Batch
from collage.frontend.inputs import random_inputs
from collage.store import open_store
from collage.store.blobs import get_blob
from tests.backends.regions import convolutions
from tests.cluster.conftest import namespace  # noqa: F401
from tests.flows.gpu_cluster import GPU, GpuCluster
from tests.flows.runs import Runs
from tests.servers.fixtures import plane  # noqa: F401

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(driver_reason() == "", reason="this machine has a real one"),
]
BACKENDS = ["cudnn", "tvm-cuda"]
"""The simulated GPU is slow: a region that may stay on the host would win all of the plan."""


@pytest.fixture
def cluster(plane, namespace, tmp_path):  # noqa: F811
    (tmp_path / "cluster").mkdir()
    created = GpuCluster(plane, namespace, tmp_path / "cluster")
    yield created
    created.close()


@pytest.fixture
def runs(server, limit, s3_address, cluster, tmp_path):
    limit("gpu")
    created = Runs(server, s3_address, tmp_path / "runs", backends=BACKENDS, measure_budget_s=60)
    created.tell(cluster.settings())
    return created


def test_a_gpu_flow_bundles_gpu_kernels_and_measures_once(runs, cluster, tmp_path):
    (tmp_path / "model").mkdir()
    function = convolutions(tmp_path / "model")
    runs.model = tmp_path / "model" / "model.onnx"
    first = runs.end(runs.start(), 1200)
    assert first["state"] == "Completed", first
    (outcome,) = first["outcomes"]
    before = runs.costs()
    assert len(before) > 10
    assert set(before.values()) == {1}, "nothing was measured twice"

    store = open_store(runs.address)
    actual = {kind: cluster.jobs(kind) for kind in ("build", "measure", "finish")}
    assert all(actual.values())
    for kind, jobs in actual.items():
        limits = [
            created_job.spec.template.spec.containers[0].resources.limits for created_job in jobs
        ]
        assert {limit.get(GPU) for limit in limits} == {None if kind == "build" else "1"}
    homes = cluster.homes()
    assert homes.pop("build") == "gpu-builder"
    assert set(homes.values()) == {"gpu-node"}
    costs = runs.valid_costs()
    measured = {
        request.backend
        for job in actual["measure"]
        for shard in batch_of(store, job).shards
        for request in shard
        if request.key in costs
    }
    assert measured == set(BACKENDS)

    assert outcome["status"] == "optimized", outcome
    (bundle,) = [outcome["result"]["bundle"]]
    assert runs.fetched(bundle)["device"] == "cuda"
    regions = outcome["result"]["plan"]
    assert any("cudnn" in region or "tvm-cuda" in region for region in regions), regions
    check_that_it_computes(cluster, runs, function, tmp_path)

    start = time.monotonic()
    second = runs.end(runs.start("elsewhere"), 600)
    print(f"first {len(before)} costs; second run {time.monotonic() - start:.0f} s")
    assert second["outcomes"][0]["result"] == outcome["result"]
    assert runs.costs() == before
    for kind, jobs in actual.items():
        assert len(cluster.jobs(kind)) == len(jobs)


def batch_of(store, job):
    text = get_blob(store, job.metadata.annotations["collage.dev/batch"])
    return Batch.model_validate_json(text)


def check_that_it_computes(cluster, runs, function, folder):
    (inputs,) = random_inputs(function, 5).values()
    np.save(folder / "x.npy", inputs)
    cluster.on_gpu("collage", "run", str(runs.folder / "fetched"), "--input",
                   f"x={folder / 'x.npy'}", "--save", str(folder / "out.npz"))  # fmt: skip
    (expected,) = onnxruntime.InferenceSession(str(runs.model)).run(None, {"x": inputs})
    with np.load(folder / "out.npz") as actual:
        np.testing.assert_allclose(actual["y"], expected, rtol=1e-4, atol=1e-5)


def test_nodes_without_a_usable_gpu_fail_the_run_with_advice(runs, cluster, limit):
    """The builder's nodes offer GPUs that no pod sees."""
    runs.tell(cluster.settings(nodeSelector={"pool": "build"}, gpuResource="nvidia.com/gpu-shared"))
    node = cluster.nodes[0]
    extra = {"status": {"capacity": {"nvidia.com/gpu-shared": "1"}}}
    node.core.patch_node_status(node.name, extra)
    node.core.patch_node_status(
        node.name, json.loads(json.dumps(extra).replace("capacity", "allocatable"))
    )
    actual = runs.end(runs.start(), 300)
    assert actual["state"] == "Failed"
    assert "no GPU to measure on: no driver" in actual["message"]
    assert "runtimeClassName" in actual["message"]

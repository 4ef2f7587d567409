"""A measuring pod's program without a cluster: what it measures, refuses, and leaves when it is ended."""

import dataclasses
import signal
import subprocess
import sys
import time

import pytest
from onnx.helper import make_node as node

from collage.cluster.exit_codes import BAD_INPUT, BAD_NODE, RETRY, TERMINATED
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.pod.answers import NodeError, ShardError, exit_code
from collage.cluster.pod.build_shard import build_shard
from collage.cluster.pod.measure_shard import measure_shard
from collage.cluster.shard_reports import ShardReports
from collage.cluster.shards import Batch, ShardRequest
from collage.cost import CostKey
from collage.cost.shared import costs_prefix
from collage.errors import DamagedError, MeasureError, ModelError, OptionError, StoreError
from collage.frontend.sample_files import NO_SAMPLES, read_samples
from collage.measure.cost_key import CostKeys
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.compile_service import node_information
from collage.pipeline.request import RequestOptions, submit
from collage.pipeline.search_stage import enumerated_function, imported, model_sweep
from collage.runtime.target import Target
from collage.store import open_store
from collage.store.blobs import put_blob
from collage.store.gc import collect_garbage
from tests.frontend.build import floats, model, save
from tests.servers.played_pod import ROOT
from tests.support.costs import KEYS, cost_lines
from tests.support.models import small_model

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(str(tmp_path_factory.mktemp("shared")))


@pytest.fixture(scope="module")
def batch(store, tmp_path_factory):
    """All candidates of a small model on two backends, in one shard."""
    folder = tmp_path_factory.mktemp("model")
    return batch_of(store, small_model(folder / "small.onnx"), folder)


def batch_of(store, model, folder, samples=NO_SAMPLES):
    """Return all candidates of a model on two backends: six in the first shard, all in the second."""
    options = RequestOptions(backends=("onnxruntime", "onednn"))
    request = submit(store, model, options=options, samples=samples)
    facts = node_information(request)
    chosen = request.compile_options(store.url, folder / "cache", samples)
    with open_compile_context(chosen) as context:
        function = imported(model, context).functions[0]
        sweep = model_sweep(function, Target.CPU, facts.cache_bytes)
        key = CostKeys([function], context.backends, facts.environment, sweep)
        requests = enumerated_function(function, context).work.values()
        shard = tuple(
            ShardRequest(
                nodes=hex(request.nodes),
                backend=request.backend,
                variant=request.variant,
                label=request.label,
                key=key(request),
            )
            for request in requests
        )
    return Batch(
        request=request.digest,
        function="main",
        environment=facts.environment,
        backends=facts.backends,
        shards=(shard[:6], shard),
    )


def written(store, batch):
    return put_blob(store, batch.model_dump_json().encode())


def costs(store, batch):
    entries = store.entries(costs_prefix(batch.environment))
    return [line.key for entry in entries for line in cost_lines(store.read(entry.key).data)]


def test_a_repeated_shard_measures_nothing(store, batch, tmp_path):
    digest = written(store, batch)
    assert measure_shard(store.url, digest, 0, tmp_path / "a").startswith("6 measured, 0 known")
    assert {request.key for request in batch.shards[0]} <= set(costs(store, batch))
    assert measure_shard(store.url, digest, 0, tmp_path / "b").startswith("0 measured, 6 known")


def test_a_pod_measures_on_the_samples_of_the_request(store, tmp_path):
    """Its costs of the operators behind the setting have the keys of the controller's samples."""
    document = model(
        [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "shape"], ["y"])],
        {"x": ("float32", ("rows", 8)), "shape": ("int64", (2,))},
        ["y"],
    )
    samples = read_samples([{"x": floats(3, 8)}], {"shape": [4, -1]})
    sampled_batch = batch_of(store, save(document, tmp_path), tmp_path, samples)
    said = measure_shard(store.url, written(store, sampled_batch), 1, tmp_path / "pod")
    assert " 0 invalid" in said
    assert {request.key for request in sampled_batch.shards[1]} <= set(costs(store, sampled_batch))


def test_a_shard_with_stored_kernels_needs_no_build(store, batch, tmp_path):
    shard = batch.shards[1][-12:]
    apart = batch.model_copy(update={"purpose": "build", "shards": (shard,)})
    kernels = KernelIndex(store, batch.environment, KEYS)
    keys = [CostKey(request.key) for request in shard]
    assert kernels.find(keys) == {}
    digest = written(store, apart)
    said = build_shard(store.url, digest, 0, tmp_path / "a")
    assert said == "12 built, 0 known, 0 invalid"
    blobs = kernels.find(keys)
    assert blobs.keys() == set(keys)
    assert build_shard(store.url, digest, 0, tmp_path / "b") == "0 built, 12 known, 0 invalid"

    digest = written(store, batch.model_copy(update={"shards": (shard,), "fetches": True}))
    said = measure_shard(store.url, digest, 0, tmp_path / "c")
    assert said.startswith("12 measured, 0 known, 0 invalid")
    assert said.endswith(" 0 built, 0 never came, 0 s waited for kernels")
    (record,) = records_of(store, batch, digest)
    assert record.built == 0
    assert record.costs.keys() == set(keys)
    assert record.before_s["cpu"] > 0 < record.after_s["cpu"]
    with pytest.raises(ShardError, match="the batch is one to measure, not to build"):
        build_shard(store.url, digest, 0, tmp_path / "d")


def test_kernels_with_old_blobs_are_built_again(store, batch, monkeypatch):
    shard = batch.shards[1][-12:]
    kernels = KernelIndex(store, batch.environment, KEYS)
    keys = [CostKey(request.key) for request in shard]
    assert len(kernels.find(keys)) == 12
    monkeypatch.setattr("collage.cluster.kernel_records.MAX_BLOB_AGE_S", 0.0)
    assert kernels.find(keys) == {}
    monkeypatch.undo()
    sweep = collect_garbage(store, 0.0)
    swept = {entry.key for entry in sweep.deleted}
    assert any(key.startswith("kernels/") for key in swept)


def test_a_build_for_other_processors_is_refused(store, batch, tmp_path):
    measuring = dataclasses.replace(batch.environment, cpu_features="others")
    changes = {"purpose": "build", "environment": measuring}
    with pytest.raises(NodeError, match="choose nodes of the same processor to build on"):
        build_shard(store.url, written(store, batch.model_copy(update=changes)), 0, tmp_path)


def records_of(store, batch, digest):
    records = ShardReports(store, batch.environment)
    records.refresh()
    return records.of({digest})


def other_key(batch):
    changed = batch.shards[0][0].model_copy(update={"key": "0" * 64})
    return batch.model_copy(update={"shards": ((changed,),)})


def other_region(batch):
    changed = batch.shards[0][0].model_copy(update={"nodes": hex(1 << 500)})
    return batch.model_copy(update={"shards": ((changed,),)})


def other_node(batch):
    environment = dataclasses.replace(batch.environment, cores=99, cpu="another")
    return batch.model_copy(update={"environment": environment})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (other_node, NodeError, r"cores is \d+, not 99; cpu is .* not 'another'; narrow the node"),
        (lambda b: b.model_copy(update={"backends": {"onednn": "onednn 0"}}), NodeError,
         r"backend onednn is .* here, onednn 0 was expected: use .* of one version"),
        (lambda b: b.model_copy(update={"backends": {"absent": "1"}}), NodeError,
         "backend absent is not available here"),
        (other_key, NodeError, "000000000000 was expected"),
        (other_region, ShardError, "no region 0x1000"),
        (lambda b: b.model_copy(update={"function": "other"}), ShardError, "no function 'other'"),
        (lambda b: b.model_copy(update={"shards": ()}), ShardError, "0 shards"),
    ],
)  # fmt: skip
def test_what_can_never_be_right_is_refused_with_what_differs(
    store, batch, tmp_path, change, kind, message
):
    with pytest.raises(kind, match=message):
        measure_shard(store.url, written(store, change(batch)), 0, tmp_path)


def test_another_version_of_the_batch_is_refused(store, batch, tmp_path):
    digest = put_blob(store, batch.model_dump_json().replace("{", '{"later":1,', 1).encode())
    with pytest.raises(NodeError, match="another version of Collage"):
        measure_shard(store.url, digest, 0, tmp_path)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NodeError("x"), BAD_NODE),
        (OptionError("x"), BAD_NODE),
        (ShardError("x"), BAD_INPUT),
        (ModelError("x"), BAD_INPUT),
        (DamagedError("x"), BAD_INPUT),
        (StoreError("x"), RETRY),
        (MeasureError("x"), RETRY),
        (RuntimeError("x"), RETRY),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code


def test_a_pod_that_is_told_to_end_has_sent_its_costs(store, batch):
    digest, before = written(store, batch), len(costs(store, batch))
    program = subprocess.Popen(
        [sys.executable, "-m", "containers.measure", "shard", "--store", store.url,
         "--batch", digest, "--index", "1"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while len(costs(store, batch)) < before + 3 and time.monotonic() < end:
        assert program.poll() is None, program.stdout.read()
        time.sleep(0.05)
    program.send_signal(signal.SIGTERM)
    output, _ = program.communicate(timeout=30)
    assert program.returncode == TERMINATED, output
    sent = costs(store, batch)
    assert before + 3 <= len(sent)
    assert len(sent) == len(set(sent))

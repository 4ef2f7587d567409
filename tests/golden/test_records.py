"""Every document that a store keeps, byte by byte where nothing in it is random."""

import json
import re
import time
from base64 import b64decode
from datetime import date

import pytest

from collage.cluster.kernel_records import KernelIndex, shard_name
from collage.cluster.shard_reports import ShardReport, ShardReports
from collage.cluster.shards import KeyedRequest, write_batch
from collage.cost import Cost, CostKey, LocalCostTable, SharedCostTable
from collage.cost.lines import decode_entries
from collage.measure.measurement_request import MeasurementRequest
from collage.pipeline.request import CompileResult, FunctionCompileResult, NodeInformation, submit
from collage.pipeline.results import claim_result
from collage.pipeline.search_checkpoint import CheckpointFile, SearchCheckpoint
from collage.registry.base import VersionStatus
from collage.registry.files import FileRegistry
from collage.runtime.trust import only_key
from collage.search.in_context import InContextSample
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan
from collage.store.alias_counters import check_newest
from collage.store.aliases import AliasSigning, read_record, remove_alias
from collage.store.blobs import put_blob, unseal
from collage.store.bundles import BundleSigning, publish_bundle, unpublish_bundle
from collage.store.directory import DirectoryStore
from collage.store.gc import Retention, collect_garbage
from collage.store.record_keys import RecordKeys
from collage.store.statement import SignedModel, revision
from collage.store.usage import Usage, UsageRecord, WorkOwner, record_usage
from collage.tuning.records import TuningRecord, TuningRecords, workload_digest
from tests.support.golden import FOLDER, check_golden
from tests.support.golden_inputs import (
    CPU,
    REQUEST,
    example_bundle,
    example_model,
    example_signer,
)

KEY = CostKey("c" * 64)
OTHER = CostKey("d" * 64)
KEYS = RecordKeys((b"0" * 32,))
COST = Cost(2e-3, 1.5e-3, 2.5e-3, (2e-3, 2.25e-3), build_s=0.5)
COSTS = {
    "valid": COST,
    "without interval": Cost(2e-3, samples=(2e-3,)),
    "reduced precision": Cost(2e-3, 1.5e-3, 2.5e-3, (2e-3,), error=0.004),
    "invalid": Cost.invalid("the library refuses it"),
}
FACTS = NodeInformation(environment=CPU, cache_bytes=32 << 20, backends={"tvm": "tvm tvm=0.27"})
MOMENT = 1_700_000_000.0
TRACE = '[[["GetSBlock",[],["root","main"],["b0"]]],[]]'


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty store; no key of records is configured."""
    for name in ("COLLAGE_RECORD_KEY", "COLLAGE_RECORD_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def fixed_time(monkeypatch):
    """Let the time of day, which records carry, be the same in every run."""
    monkeypatch.setattr(time, "time", lambda: MOMENT)


def only(store, prefix):
    """The content of the store's only object under the prefix."""
    (entry,) = store.entries(prefix)
    return store.read(entry.key).data.decode()


def without_token(text):
    """The fields of a JSON object, its random token masked."""
    fields = json.loads(text)
    assert re.fullmatch("[0-9a-f]{32}", fields["token"])
    return {**fields, "token": "*"}


def keys_of(store):
    """The keys of all objects, digests masked."""
    found = {entry.key for entry in store.entries("")} - {"lock"}
    found = {re.sub("[0-9a-f]{64}", "<digest>", key) for key in found}
    found = {re.sub(r"\.[0-9a-f]{16}\.dsse", ".<signature>.dsse", key) for key in found}
    return sorted({re.sub(r"\b[0-9a-f]{2}/<", "<2 digits>/<", key) for key in found})


def test_lines_of_costs(tmp_path):
    table = LocalCostTable(tmp_path, CPU)
    for name, cost in COSTS.items():
        table.put(CostKey(name), cost)
    (file,) = (tmp_path / "costs").iterdir()
    check_golden("cost_lines.txt", file.read_text())
    again = LocalCostTable(tmp_path, CPU)
    for name, cost in COSTS.items():
        found = again.get(CostKey(name))
        assert (found.seconds, found.samples, found.reason, found.error) == (
            cost.seconds, cost.samples, cost.reason, cost.error
        )  # fmt: skip
    assert again.corrupt == 0


@pytest.mark.usefixtures("fixed_time")
def test_shared_lines_of_costs(store, tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_RECORD_KEY", "0" * 32)
    table = SharedCostTable(store, LocalCostTable(tmp_path / "local", CPU), time.monotonic)
    table.put(KEY, COST)
    table.void(OTHER, "0a1b2c3d")
    table.flush()
    check_golden("shared_cost_lines.txt", only(store, "costs/"))


def test_lines_of_kernels(store, tmp_path):
    index = KernelIndex(store, CPU, KEYS)
    file = tmp_path / "kernel"
    file.write_bytes(b"kernel")
    index.put(KEY, file)
    index.end([shard_name("token", 3)])
    check_golden("kernel_lines.txt", only(store, "kernels/"))


@pytest.mark.usefixtures("fixed_time")
def test_lines_of_tuning(store, tmp_path):
    records = TuningRecords(tmp_path / "local", CPU, store, clock=time.monotonic, keys=KEYS)
    workload = workload_digest("0" * 64, "tvm 0.27")
    for one in (
        TuningRecord(workload, TRACE, 2e-3, 1.5),
        TuningRecord(workload, "[[],[]]", float("inf"), 0.5, "timed out"),
        TuningRecord(workload, "", float("inf"), 0.0, "no more schedules"),
    ):
        records.add(one, "tvm 0.27")
    records.flush()
    (file,) = (tmp_path / "local" / "tuning").iterdir()
    check_golden("tuning_lines.txt", file.read_text() + only(store, "tuning/"))


def test_lines_of_shards(store):
    record = ShardReport(
        batch="b" * 64, index=1, pod="pod-1", node="node-1", began=100.0, ended=200.5,
        before_s={"cpu": 0.01}, after_s={"cpu": 0.011}, costs={KEY: "0a1b2c3d"}, built=2,
    )  # fmt: skip
    ShardReports(store, CPU).put(record)
    check_golden("shard_lines.txt", only(store, "shards/"))


@pytest.mark.parametrize("purpose", ["measure", "build"])
def test_batches_of_candidates(purpose):
    wanted = [
        KeyedRequest(KEY, MeasurementRequest("main", 0b101, "onednn")),
        KeyedRequest(OTHER, MeasurementRequest("main", 1 << 70, "tvm", "fast")),
    ]
    backends = {"tvm": "tvm 1", "onednn": "onednn 3", "openvino": "unused"}
    shards = [wanted[:1], wanted[1:]]
    text = write_batch(
        shards, request="r" * 64, function="main", environment=CPU, backends=backends,
        purpose=purpose, fetches=purpose == "measure",
    )  # fmt: skip
    check_golden(f"batch_{purpose}.json", text.decode())


def test_marks_of_searches(store, tmp_path):
    key = ("digest-a", "example 1", "")
    plans = [NamedPlan("best-1", Plan((Option(0b11, key, "example"),), 9.0), "example")]
    mark = CheckpointFile(tmp_path / "searches" / ("e" * 64), store)
    samples = [InContextSample(key, 1.0, 1.5)]
    mark.write(SearchCheckpoint.of(0.25, plans=plans, samples=samples, tuned_s=30.0))
    check_golden("search_mark.json", mark.path.read_text())
    shared = without_token(only(store, "searches/"))
    assert shared == {**json.loads(mark.path.read_text()), "token": "*"}


def result(bundle):
    return CompileResult(
        bundle=bundle, report="e" * 64, reason="outputs equal", speedup=1.5,
        functions=(
            FunctionCompileResult(
                function="main", verdict="not slower", predicted_s=1e-3,
                latency_s={"collage": 1e-3, "openvino": None},
            ),
        ),
        plan=("onednn",), measured=3, cached=2, invalid=1, seconds={"import": 0.5},
    )  # fmt: skip


def test_requests_and_results(store, tmp_path):
    made = submit(store, example_model(tmp_path / "small.onnx", external=True), threads=2)
    assert made.text.decode() == only(store, "requests/")
    claim_result(store, REQUEST, FACTS, result("a" * 64))
    sealed = unseal(only(store, "results/").encode())
    sealed = {**sealed, "result": json.loads(sealed["result"])}
    check_golden(
        "documents.json",
        {
            "request": json.loads(REQUEST.text),
            "submitted": json.loads(made.text),
            "result": without_token(json.dumps(sealed)),
        },
    )


@pytest.mark.usefixtures("fixed_time")
def test_aliases_and_statements(store, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_REVISION", "0123456789abcdef")
    revision.cache_clear()
    try:
        bundle = example_bundle(tmp_path / "bundle")
        plain = publish_bundle(store, bundle, ["small/plain"])
        signer = example_signer(tmp_path)
        signing = AliasSigning.by(signer)
        model = SignedModel.of_registry("small", "3", "r" * 64)
        publish_bundle(store, bundle, ["small/signed"], BundleSigning(signing, model))
        remove_alias(store, "small/plain", plain.digest)
    finally:
        revision.cache_clear()
    (statement,) = store.entries("signatures/")
    record = unseal(store.read("aliases/small/plain.json").data)
    signed = unseal(store.read("aliases/small/signed.json").data)
    envelope = json.loads(signed["envelope"])
    check_golden(
        "aliases.json",
        {
            "record": {**record, "record": without_token(record["record"])},
            "signed": {**signed, "envelope": _opened(envelope, ["token"])},
        },
    )
    check_golden(
        "statement.json",
        {
            "key": statement.key,
            "envelope": json.loads(store.read(statement.key).data),
            "opened": _opened(json.loads(store.read(statement.key).data), []),
        },
    )
    seen = read_record(store, "small/signed", only_key(signer.public))
    check_newest(tmp_path / "seen", "s3://bucket/prefix", seen)
    (file,) = (tmp_path / "seen").glob("*.json")
    check_golden("seen_alias.json", {"file": file.name, "content": json.loads(file.read_text())})


def _opened(envelope, random):
    """An envelope with its payload as JSON; what is random, and so the signature, masked."""
    payload = json.loads(b64decode(envelope["payload"]))
    payload |= dict.fromkeys(random, "*")
    signatures = [{**one, "sig": "*"} for one in envelope["signatures"]]
    return {**envelope, "payload": payload, "signatures": signatures}


def test_registries_of_files(tmp_path):
    registry = FileRegistry(DirectoryStore(tmp_path / "models"), "candidate", "optimized")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    version = registry.add("small", "3", {"model.onnx": model})
    registry.set_alias(version)
    registry.accept(version)
    status = VersionStatus("optimized", "b" * 64, 1.5, "local: faster", "local=0a1b")
    registry.record_status(version, status)
    objects = DirectoryStore(tmp_path / "models")
    keys = [entry.key for entry in objects.entries("small/")]
    keys.remove("small/3/model.onnx")
    found = {key: objects.read(key).data for key in keys}
    shown = {key: json.loads(data) for key, data in sorted(found.items())}
    check_golden(
        "registry.json",
        {key: {**one, "token": "*"} if "token" in one else one for key, one in shown.items()},
    )


def test_places_of_objects(store, tmp_path):
    """One object of each kind; what is unpublished or swept lies in the trash."""
    table = SharedCostTable(store, LocalCostTable(tmp_path / "local", CPU), time.monotonic)
    table.put(KEY, COST)
    table.flush()
    index = KernelIndex(store, CPU, KEYS)
    index.end(["token/0"])
    tuned = TuningRecords(tmp_path / "local", CPU, store, clock=time.monotonic, keys=KEYS)
    tuned.add(TuningRecord(workload_digest("0" * 64, "tvm"), "", float("inf")), "tvm")
    tuned.flush()
    shard = ShardReport(
        batch="b" * 64, index=0, pod="p", node="n", began=0.0, ended=1.0, costs={}, built=0
    )
    ShardReports(store, CPU).put(shard)
    file = CheckpointFile(tmp_path / "local" / "searches" / ("e" * 64), store)
    file.write(SearchCheckpoint.of(0.0))
    submit(store, example_model(tmp_path / "small.onnx"))
    signing = AliasSigning.by(example_signer(tmp_path))
    bundle = example_bundle(tmp_path / "bundle")
    publish_bundle(store, bundle, ["small/3/pool"], BundleSigning(signing, SignedModel("small")))
    claim_result(store, REQUEST, FACTS, result("a" * 64))
    other = example_bundle(tmp_path / "other")
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 7', '"seed": 8'))
    unpublish_bundle(store, publish_bundle(store, other).digest)
    put_blob(store, b"nobody needs this")
    owner = WorkOwner("run", "small", "3", "ocr")
    usage = Usage.of(1.5, cpus=2, gpus=1)
    record_usage(
        store, UsageRecord(owner, "pool", work="job", usage=usage, ended=date(2026, 11, 26))
    )
    places = keys_of(store)
    keep = Retention(requests=1e9, results=1e9, searches=1e9, costs=1e9, shards=1e9, usage=1e9)
    swept = collect_garbage(store, 0.0, retention=keep)
    local = sorted(
        re.sub("[0-9a-f]{64}", "<digest>", str(file.relative_to(tmp_path / "local")))
        for file in (tmp_path / "local").rglob("*")
        if file.is_file()
    )
    check_golden(
        "places.json",
        {
            "store": places,
            "garbage": sorted(
                {re.sub("[0-9a-f]{64}", "<digest>", one.key) for one in swept.deleted}
            ),
            "local": local,
        },
    )


@pytest.mark.parametrize("name", ["cost", "shared_cost", "kernel", "tuning", "shard"])
def test_golden_lines_are_whole(name):
    entries = list(decode_entries((FOLDER / f"{name}_lines.txt").read_bytes()))
    assert entries
    assert None not in entries

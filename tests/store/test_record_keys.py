"""Who may write records that lead to code: what no known key signed is a miss."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kernel_records import KernelIndex
from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.batches import compact
from collage.cost.lines import encode_entry
from collage.errors import OptionError, StoreError
from collage.pipeline.request import CompileRequest, RequestedModel
from collage.store import open_store
from collage.store.blobs import digest_of, put_blob
from collage.store.record_keys import RecordKeys, configured_keys, record_keys
from collage.tuning.records import TuningRecord, TuningRecords
from tests.tuning.regions import trace

ENVIRONMENT = Environment("cpu", "features", 4, 1, "", "cold-1")
OTHER = replace(ENVIRONMENT, cores=8)
OLD, NEW, THEIRS = ("1" * 32, "2" * 32, "3" * 32)
K = CostKey("a" * 64)
W = "b" * 64


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("COLLAGE_RECORD_KEY", raising=False)
    monkeypatch.delenv("COLLAGE_RECORD_KEY_FILE", raising=False)


def keys(*texts):
    return RecordKeys(tuple(text.encode() for text in texts))


def file_of(tmp_path, content=b"code"):
    file = tmp_path / "kernel"
    file.write_bytes(content)
    return file


def put(store, tmp_path, signing, content=b"code"):
    index = KernelIndex(store, ENVIRONMENT, signing)
    index.put(K, file_of(tmp_path, content))
    index.flush()


def send(store, folder, entry, environment=ENVIRONMENT):
    data = encode_entry(entry)
    store.create(f"{folder}/{environment.digest}/{digest_of(data)}.jsonl", data)


def test_a_kernel_that_an_unknown_writer_names_is_not_opened(store, tmp_path, caplog):
    """The attack: whoever may write to the store names a library of his own as the kernel."""
    evil = put_blob(store, b"evil code")
    send(store, "kernels", {"kernel": K, "blob": evil})
    put(store, tmp_path, keys(THEIRS), b"code of another environment")
    mine = KernelIndex(store, ENVIRONMENT, keys(OLD))
    assert mine.find([K]) == {}
    assert (mine.unsigned, mine.corrupt) == (2, 0)
    assert "COLLAGE_RECORD_KEY" in caplog.text
    put(store, tmp_path, keys(OLD))
    assert mine.find([K]) == {K: digest_of(b"code")}


def test_a_changed_line_is_a_miss(store):
    signed = keys(OLD).signed({"kernel": K, "blob": "0" * 64}, f"kernels/{ENVIRONMENT.digest}/")
    send(store, "kernels", {**signed, "blob": put_blob(store, b"evil code")})
    send(store, "kernels", {**signed, "more": 1})
    send(store, "kernels", {**signed, "mac": "é" * 64})
    send(store, "kernels", {**signed, "mac": 7})
    index = KernelIndex(store, ENVIRONMENT, keys(OLD))
    assert index.find([K]) == {}
    assert index.unsigned == 4


def test_a_line_of_another_environment_is_a_miss(store):
    signed = keys(OLD).signed(
        {"kernel": K, "blob": put_blob(store, b"code")}, f"kernels/{OTHER.digest}/"
    )
    send(store, "kernels", signed, OTHER)
    send(store, "kernels", signed, ENVIRONMENT)
    assert KernelIndex(store, OTHER, keys(OLD)).find([K]).keys() == {K}
    assert KernelIndex(store, ENVIRONMENT, keys(OLD)).find([K]) == {}


def test_a_key_is_exchanged_in_two_steps(store, tmp_path):
    put(store, tmp_path, keys(OLD))
    assert KernelIndex(store, ENVIRONMENT, keys(NEW, OLD)).find([K]).keys() == {K}
    assert KernelIndex(store, ENVIRONMENT, keys(NEW)).find([K]) == {}
    put(store, tmp_path, keys(NEW, OLD))
    assert KernelIndex(store, ENVIRONMENT, keys(NEW)).find([K]).keys() == {K}


def test_batches_are_merged_without_the_key(store, tmp_path):
    shared = TuningRecords(tmp_path / "one", ENVIRONMENT, store, keys=keys(OLD))
    for number in range(3):
        shared.add(TuningRecord(W, trace(number), 1e-3 * (number + 1)), "tvm")
        shared.flush()
    assert compact(store, 0.0, at_least=2) == 2
    assert len(TuningRecords(tmp_path / "two", ENVIRONMENT, store, keys=keys(OLD)).of(W)) == 3


def test_a_schedule_of_an_unknown_writer_is_not_applied(store, tmp_path):
    theirs = TuningRecords(tmp_path / "theirs", ENVIRONMENT, store)
    theirs.add(TuningRecord(W, trace(1), 1e-6), "tvm")
    theirs.flush()
    mine = TuningRecords(tmp_path / "mine", ENVIRONMENT, store)
    assert mine.best(W) is None
    assert mine.unsigned == 1
    (tmp_path / "theirs" / "tuning" / f"{ENVIRONMENT.digest}.jsonl").unlink()
    shared = TuningRecords(tmp_path / "theirs", ENVIRONMENT, store)
    assert shared.best(W).trace == trace(1), "their own key, made in their cache, signed it"


@pytest.mark.parametrize(
    ("writer", "reader", "is_found"),
    [("", "", True), (OLD, "", True), ("", OLD, False), (THEIRS, OLD, False), (OLD, OLD, True),
     (OLD, f"{NEW} {OLD}", True)],
)  # fmt: skip
def test_costs_are_signed_where_a_key_is_configured(
    store, tmp_path, monkeypatch, writer, reader, is_found
):
    def table(name, key):
        monkeypatch.setenv("COLLAGE_RECORD_KEY", key)
        return SharedCostTable(store, LocalCostTable(tmp_path / name, ENVIRONMENT), lambda: 0.0)

    theirs = table("theirs", writer)
    theirs.put(K, Cost(1e-3, 1e-3, 2e-3, (1e-3,)))
    theirs.void(CostKey("c"), "mark")
    theirs.flush()
    mine = table("mine", reader)
    assert (mine.get(K) is not None) == is_found
    assert mine.was_voided(CostKey("c")) == is_found
    assert mine.unsigned == (0 if is_found else 2)


def test_keys_come_from_the_environment_and_a_file(monkeypatch, tmp_path):
    assert configured_keys() is None
    monkeypatch.setenv("COLLAGE_RECORD_KEY", f"{NEW}\n{OLD}\n")
    assert configured_keys() == keys(NEW, OLD)
    monkeypatch.delenv("COLLAGE_RECORD_KEY")
    (tmp_path / "key").write_text(f"{NEW}\n")
    monkeypatch.setenv("COLLAGE_RECORD_KEY_FILE", str(tmp_path / "key"))
    assert configured_keys() == keys(NEW)
    assert record_keys(tmp_path / "cache") == keys(NEW)
    assert not (tmp_path / "cache").exists()
    assert NEW not in repr(configured_keys())


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 31, b"\xff" * 40, None])
def test_a_file_without_a_key_says_how_to_make_one(monkeypatch, tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    monkeypatch.setenv("COLLAGE_RECORD_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(OptionError, match="COLLAGE_RECORD_KEY_FILE") as error:
        configured_keys()
    if content in (b"", b"short", b"x" * 31):
        assert "openssl rand -hex 32" in str(error.value)


def test_a_users_own_key_is_made_once_and_is_private(tmp_path):
    code = (
        "import sys; from collage.store.record_keys import record_keys; from pathlib import Path;"
    )
    code += "print(record_keys(Path(sys.argv[1])).keys[0].decode())"
    makers = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    actual = {maker.communicate(timeout=60)[0] for maker in makers}
    assert actual == {record_keys(tmp_path).keys[0].decode() + "\n"}
    assert not record_keys(tmp_path).configured
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o640)
    with pytest.raises(StoreError, match="is not yours alone; delete it"):
        record_keys(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_that_somebody_planted_is_refused(tmp_path):
    file = tmp_path / f"record-key-{os.geteuid()}"
    file.write_text(THEIRS)
    file.chmod(0o600)
    os.chown(file, 12345, 12345)
    with pytest.raises(StoreError, match="is not yours alone"):
        record_keys(tmp_path)


def test_kernels_are_not_built_apart_without_a_key(store, tmp_path, monkeypatch):
    settings = ClusterSettings(measure_image="m", controller_image="c")
    environments = {"gpu": MeasuringEnvironment(gpu_resource="nvidia.com/gpu", device="cuda")}
    service = ClusterCompileService(
        store.url, tmp_path, settings, environments, jobs=SimpleNamespace()
    )
    requested = CompileRequest(
        name="m", models=(RequestedModel(model="0" * 64),), environment="gpu", device="cuda"
    )
    with pytest.raises(OptionError, match=r"store\.recordKey\.existingSecret"):
        service.probe(requested)
    monkeypatch.setenv("COLLAGE_RECORD_KEY", OLD)
    assert service._environment(requested) == environments["gpu"]


def test_no_key_is_ever_written_into_a_store(store, tmp_path):
    put(store, tmp_path, keys(OLD))
    texts = [store.read(entry.key).data for entry in store.entries("")]
    assert not any(OLD.encode() in text for text in texts)
    assert any(b'"mac"' in text for text in texts)
    assert json.dumps(OLD).encode() not in b"".join(texts)

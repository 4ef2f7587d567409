import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.batches import compact
from collage.errors import DamagedError
from collage.pipeline.request import (
    CompileResult,
    NodeInformation,
    fetch_models,
    read_request,
    submit,
)
from collage.pipeline.results import claim_result, node_digest
from collage.store.aliases import list_aliases
from collage.store.blobs import blob_key, digest_of, get_blob, put_blob
from collage.store.bundles import fetch_bundle, publish_bundle, unpublish_bundle
from collage.store.gc import Retention, collect_garbage
from tests.store.test_protocol import overwrite

ENVIRONMENT = Environment("cpu", "", 2, 1, "", "test")


def keys(store):
    return {entry.key for entry in store.entries("")} - {"lock"}


def test_a_dry_run_deletes_nothing(store):
    garbage = blob_key(put_blob(store, b"garbage"))
    sweep = collect_garbage(store, 0.0)
    assert sweep.dry_run
    assert [entry.key for entry in sweep.deleted] == [garbage]
    assert sweep.bytes_deleted == 7
    assert garbage in keys(store)


def test_what_a_manifest_reaches_stays(store, make_bundle, tmp_path):
    shared = make_bundle("one", weights_bin=b"shared")
    digests = [
        publish_bundle(store, shared, ["a"]).digest,
        publish_bundle(store, make_bundle("two", weights_bin=b"shared", plan_json=b"[2]")).digest,
    ]
    store.create("costs/any/x.jsonl", b"costs are kept")
    before = keys(store)
    garbage = {blob_key(put_blob(store, b"%d" % number)) for number in range(20)}
    garbage |= {f"probe/{'0' * 32}", f"answers/{'0' * 32}.json"}
    store.create(f"answers/{'0' * 32}.json", b"{}")
    store.create(f"probe/{'0' * 32}", b"")
    sweep = collect_garbage(store, 0.0, dry_run=False)
    assert {entry.key for entry in sweep.deleted} == garbage
    assert (sweep.bundles, keys(store)) == (2, before)
    for digest in digests:
        fetch_bundle(store, digest, tmp_path / digest)
    assert [alias.bundle for alias in list_aliases(store)] == digests[:1]


def test_young_garbage_stays(store):
    put_blob(store, b"about to be used")
    assert collect_garbage(store, 3600.0, dry_run=False).deleted == ()


def test_other_peoples_objects_stay(store):
    store.create("blobs/README.md", b"hello")
    assert collect_garbage(store, 0.0, dry_run=False).deleted == ()
    assert "blobs/README.md" in keys(store)


def test_a_damaged_manifest_stops_the_sweep(store, address, request, make_bundle):
    digest = publish_bundle(store, make_bundle()).digest
    put_blob(store, b"garbage")
    before = keys(store)
    overwrite(address, request, f"bundles/{digest}.json", b'{"files": {}}')
    with pytest.raises(DamagedError):
        collect_garbage(store, 0.0, dry_run=False)
    assert keys(store) == before


def test_a_blob_swept_while_it_was_being_published_is_sent_again(
    store, make_bundle, tmp_path, monkeypatch
):
    """The sweep marks before the manifest is there, and deletes before the publisher looks again."""
    folder = make_bundle()
    create = type(store).create

    def sweep_before_the_manifest(self, key, source):
        if key.startswith("bundles/"):
            assert collect_garbage(store, 0.0, dry_run=False).deleted
        create(self, key, source)

    monkeypatch.setattr(type(store), "create", sweep_before_the_manifest)
    digest = publish_bundle(store, folder).digest
    fetch_bundle(store, digest, tmp_path / "out")


def test_garbage_that_is_used_again_during_the_sweep_stays(store, make_bundle, monkeypatch):
    """It was old when it was listed, and a publisher has made it young again before it is deleted."""
    digest = put_blob(store, b"garbage")
    stat = type(store).stat

    def young(self, key):
        return dataclasses.replace(stat(self, key), age_s=1.0)

    monkeypatch.setattr(type(store), "stat", young)
    entries = type(store).entries
    monkeypatch.setattr(
        type(store),
        "entries",
        lambda self, prefix: (dataclasses.replace(e, age_s=1e6) for e in entries(self, prefix)),
    )
    assert [entry.key for entry in collect_garbage(store).deleted] == [blob_key(digest)]
    assert collect_garbage(store, dry_run=False).deleted == ()
    assert get_blob(store, digest) == b"garbage"


def test_unfinished_writes_go(process_address, tmp_path, request):
    from collage.store import open_store

    store = open_store(process_address)
    if process_address.startswith("s3://"):
        bucket, ours = request.getfixturevalue("bucket"), blob_key("0" * 64)
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key=f"team/collage/{ours}")
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key="another/team")
    else:
        (tmp_path / "store" / "tmp").mkdir(parents=True)
        (tmp_path / "store" / "tmp" / "object-x").write_bytes(b"half")
    assert len(collect_garbage(store, 0.0).partial) == 1
    assert collect_garbage(store, 3600.0, dry_run=False).partial == ()
    assert len(collect_garbage(store, 0.0, dry_run=False).partial) == 1
    assert collect_garbage(store, 0.0).partial == ()


def test_uploads_of_others_at_a_buckets_root_stay(bucket, s3_server):
    from collage.store import open_store

    store = open_store(bucket.address(s3_server.url, timeout_s=20).replace("/team/collage", ""))
    mine, theirs = blob_key("0" * 64), ["another/team", "blobs/model.bin", "blobs/00/data"]
    for key in (mine, *theirs):
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)
    (said,) = collect_garbage(store, 0.0, dry_run=False).partial
    assert mine in said
    remaining = bucket.client.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
    assert sorted(upload["Key"] for upload in remaining) == sorted(theirs)


def age(monkeypatch, store, days):
    """Let the objects whose key has one of these beginnings look so many days old."""
    entries, stat = type(store).entries, type(store).stat

    def older(entry):
        actual = [age for begin, age in days.items() if entry and entry.key.startswith(begin)]
        return dataclasses.replace(entry, age_s=actual[0] * 24 * 3600.0) if actual else entry

    monkeypatch.setattr(
        type(store), "entries", lambda self, prefix: map(older, list(entries(self, prefix)))
    )
    monkeypatch.setattr(type(store), "stat", lambda self, key: older(stat(self, key)))


@pytest.fixture
def submitted(store, tmp_path, monkeypatch):
    """A request with external data, whose model lies in the store."""
    (tmp_path / "model.onnx").write_bytes(b"a model")
    (tmp_path / "weights.bin").write_bytes(b"its weights")

    @contextmanager
    def held(path):
        weights = SimpleNamespace(path=path.parent / "weights.bin")
        yield SimpleNamespace(own=SimpleNamespace(path=path), external={"weights.bin": weights})

    monkeypatch.setattr("collage.pipeline.request.open_model", held)
    return submit(store, tmp_path / "model.onnx", environment="pool")


def test_the_model_of_a_request_stays_while_its_job_may_queue(
    store, submitted, monkeypatch, tmp_path
):
    """The request is older than a day, and its Job waits for a node."""
    age(monkeypatch, store, {"blobs/": 3, "requests/": 3})
    put_blob(store, b"garbage")
    sweep = collect_garbage(store, dry_run=False)
    assert [entry.key for entry in sweep.deleted] == [blob_key(digest_of(b"garbage"))]
    (entry,) = fetch_models(store, read_request(store, submitted.digest), tmp_path / "fetched")
    assert entry.path.read_bytes() == b"a model"
    assert (entry.path.parent / "weights.bin").read_bytes() == b"its weights"


def test_a_request_that_nobody_uses_goes_and_then_its_model(store, submitted, monkeypatch):
    age(monkeypatch, store, {"blobs/": 40, "requests/": 40, "trash/": 0})
    sweep = collect_garbage(store, dry_run=False)
    assert [entry.key for entry in sweep.deleted] == [f"requests/{submitted.digest}.json"]
    assert read_request(store, submitted.digest) == submitted, "for a day it is still found"
    age(monkeypatch, store, {"blobs/": 41, "trash/": 2})
    for _ in range(3):
        collect_garbage(store, dry_run=False)
    assert keys(store) == set()


def finished(store, requested, bundle):
    facts = NodeInformation(environment=ENVIRONMENT, cache_bytes=1, backends={})
    actual = CompileResult(
        bundle=bundle, report=put_blob(store, b"<p>"), reason="", speedup=1.1,
        functions=(), plan=(), measured=0, cached=0, invalid=0, seconds={},
    )  # fmt: skip
    claim_result(store, requested, facts, actual)
    return f"results/{requested.digest}/{node_digest(facts)}.json"


@pytest.mark.parametrize("alias", [True, False])
def test_what_a_live_alias_needs_stays_however_old(
    store, submitted, make_bundle, monkeypatch, alias
):
    bundle = publish_bundle(store, make_bundle(), ["a"] if alias else []).digest
    key = finished(store, submitted, bundle)
    costs = f"costs/{'0' * 64}/{'1' * 64}.jsonl"
    store.create(costs, b"")
    before = keys(store)
    old = dict.fromkeys(("blobs/", "requests/", "results/", "costs/", "signatures/"), 1000)
    age(monkeypatch, store, {**old, "trash/": 0})
    deleted = {entry.key for entry in collect_garbage(store, dry_run=False).deleted}
    assert deleted == ({costs} if alias else {costs, key, f"requests/{submitted.digest}.json"})
    assert {blob_key(digest_of(b"<p>")), f"bundles/{bundle}.json"} <= before & keys(store)


@pytest.mark.parametrize(
    ("kind", "days"), [("searches", 90), ("costs", 180), ("tuning", 180), ("shards", 30)]
)
def test_records_go_after_their_time_and_options_change_it(store, monkeypatch, kind, days):
    first = (
        f"searches/{'0' * 64}.json" if kind == "searches" else f"{kind}/{'0' * 64}/{'1' * 64}.jsonl"
    )
    store.create(first, b"{}")
    name = "costs" if kind == "tuning" else kind

    def gone(at, **keep):
        retention = Retention(**{name: value * 24 * 3600.0 for name, value in keep.items()})
        with monkeypatch.context() as patch:
            age(patch, store, {kind: at})
            return [first.key for first in collect_garbage(store, retention=retention).deleted]

    assert (gone(days - 1), gone(days + 1)) == ([], [first])
    assert (gone(days + 1, **{name: 2 * days}), gone(2, **{name: 1})) == ([], [first])


def test_a_signature_goes_with_its_bundle(store, make_bundle):
    folder = make_bundle()
    (folder / f"statement.{'0' * 16}.{'1' * 16}.dsse.json").write_bytes(b"{}")
    digest = publish_bundle(store, folder).digest
    collect_garbage(store, 0.0, dry_run=False)
    assert any(key.startswith("signatures/") for key in keys(store))
    unpublish_bundle(store, digest)
    collect_garbage(store, 3600.0, dry_run=False)
    assert any(key.startswith("signatures/") for key in keys(store)), "it may be put back"
    for _ in range(2):
        collect_garbage(store, 0.0, dry_run=False)
    assert keys(store) == set()


def test_a_merge_forgets_lines_of_long_ago(store, tmp_path, monkeypatch):
    def put(name, key, at):
        monkeypatch.setattr("collage.cost.lines.time.time", lambda: at)
        table = SharedCostTable(store, LocalCostTable(tmp_path / name, ENVIRONMENT), lambda: 0.0)
        table.put(CostKey(key), Cost(1e-3))
        table.flush()

    day_s, now_s = 24 * 3600.0, 20_000 * 24 * 3600.0
    put("a", "old", now_s - 200 * day_s)
    put("b", "new", now_s - 100 * day_s)
    put("c", "today", now_s)
    compact(store, 0.0, at_least=2)
    reader = SharedCostTable(store, LocalCostTable(tmp_path / "r", ENVIRONMENT), lambda: 0.0)
    actual = {key for key in ("old", "new", "today") if reader.get(CostKey(key))}
    assert actual == {"new", "today"}


def test_a_big_blob_is_copied_in_parts(bucket, s3_server, monkeypatch):
    """What one step of the service may not copy; here the limit is small."""
    from collage.store import open_store, s3_writer

    monkeypatch.setattr(s3_writer, "COPIED_BYTES", 5 << 20)
    store = open_store(bucket.address(s3_server.url, timeout_s=20), writes=False)
    data = bytes(range(256)) * (11 << 12)
    key = blob_key(put_blob(store, data))
    assert store.copy(key, f"trash/{key}")
    assert digest_of(store.read(f"trash/{key}").data) == digest_of(data)
    assert not store.copy(blob_key("0" * 64), f"trash/{key}")

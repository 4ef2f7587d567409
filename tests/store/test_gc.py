import dataclasses

import pytest

from collage.errors import DamagedError, StoreError
from collage.store.aliases import list_aliases
from collage.store.blobs import blob_key, digest_of, get_blob, put_blob
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.gc import collect_garbage
from tests.store.test_protocol import overwrite


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


def test_a_stranger_among_the_manifests_stops_the_sweep(store):
    put_blob(store, b"garbage")
    store.create("bundles/copy-of-a-manifest.json", b"{}")
    with pytest.raises(StoreError, match="is no manifest"):
        collect_garbage(store, 0.0, dry_run=False)
    assert blob_key(digest_of(b"garbage")) in keys(store)


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


def test_unfinished_writes_go(address, tmp_path, request):
    from collage.store import open_store

    store = open_store(address)
    if address.startswith("s3://"):
        bucket = request.getfixturevalue("bucket")
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key="team/collage/blobs/x")
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key="another/team")
    else:
        (tmp_path / "store" / "tmp").mkdir(parents=True)
        (tmp_path / "store" / "tmp" / "object-x").write_bytes(b"half")
    assert len(collect_garbage(store, 0.0).partial) == 1
    assert collect_garbage(store, 3600.0, dry_run=False).partial == ()
    assert len(collect_garbage(store, 0.0, dry_run=False).partial) == 1
    assert collect_garbage(store, 0.0).partial == ()

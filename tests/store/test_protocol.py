"""What every store does: each test runs against a folder and against a real S3 server."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from collage.errors import DamagedError, StoreError
from collage.store import open_store
from collage.store.base import check_key
from collage.store.blobs import blob_key, digest_of, fetch_blob, get_blob, put_blob

BIG = os.urandom(12 << 20)


def overwrite(address, request, key, data):
    """Change an object behind the store's back."""
    if address.startswith("gs://"):
        import obstore

        from collage.store.cloud_settings import parse_cloud

        settings = parse_cloud(address)
        bucket = request.getfixturevalue("cloud")(settings)
        obstore.put(bucket, f"{settings.prefix}/{key}", data)
    elif address.startswith("s3://"):
        bucket = request.getfixturevalue("bucket")
        bucket.client.put_object(Bucket=bucket.name, Key=f"team/collage/{key}", Body=data)
    else:
        (request.getfixturevalue("tmp_path") / "store" / key).write_bytes(data)


@pytest.mark.parametrize("data", [b"", b"kernel", BIG], ids=["empty", "small", "parts"])
def test_a_blob_comes_back(store, tmp_path, data):
    digest = put_blob(store, data)
    assert digest == digest_of(data)
    assert get_blob(store, digest) == data
    fetch_blob(store, digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert store.stat(blob_key(digest)).size_bytes == len(data)


@pytest.mark.parametrize("data", [b"kernel", BIG], ids=["small", "parts"])
def test_a_blob_from_a_file(store, tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    assert get_blob(store, put_blob(store, tmp_path / "file")) == data


def test_another_client_sees_it(store, address):
    assert get_blob(open_store(address), put_blob(store, b"kernel")) == b"kernel"


def test_an_absent_object_is_none_and_an_absent_blob_an_error(store, tmp_path):
    assert store.read("runs/a") is None
    assert store.stat("runs/a") is None
    assert not store.download("runs/a", tmp_path / "copy")
    assert list(store.entries("runs/")) == []
    store.delete("runs/a")
    with pytest.raises(StoreError, match="has no blobs/"):
        get_blob(store, digest_of(b"absent"))
    with pytest.raises(StoreError, match="has no blobs/"):
        fetch_blob(store, digest_of(b"absent"), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_changed_blob_is_not_served(store, address, request, tmp_path):
    digest = put_blob(store, b"kernel")
    overwrite(address, request, blob_key(digest), b"KERNEL")
    with pytest.raises(DamagedError, match=rf"{blob_key(digest)}.*changed or damaged.*publish"):
        get_blob(store, digest)
    with pytest.raises(DamagedError):
        fetch_blob(store, digest, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_truncated_blob_is_repaired_by_whoever_has_the_content(store, address, request):
    digest = put_blob(store, b"kernel")
    overwrite(address, request, blob_key(digest), b"ker")
    put_blob(store, b"kernel")
    assert get_blob(store, digest) == b"kernel"


def test_swap_compares(store):
    assert store.swap("aliases/a.json", b"one", None)
    assert not store.swap("aliases/a.json", b"two", None)
    first = store.read("aliases/a.json")
    assert first.data == b"one"
    assert store.swap("aliases/a.json", b"three", first.version)
    assert not store.swap("aliases/a.json", b"four", first.version)
    assert store.read("aliases/a.json").data == b"three"


def test_swap_of_what_was_deleted_fails(store):
    store.swap("aliases/a.json", b"one", None)
    version = store.read("aliases/a.json").version
    store.delete("aliases/a.json")
    assert not store.swap("aliases/a.json", b"two", version)
    assert store.read("aliases/a.json") is None


@pytest.mark.parametrize("exists", [False, True])
def test_one_of_many_swaps_wins(store, exists):
    version = None
    if exists:
        store.swap("aliases/a.json", b"old", None)
        version = store.read("aliases/a.json").version
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda n: store.swap("aliases/a.json", b"%d" % n, version), range(16)))
    assert won.count(True) == 1
    assert store.read("aliases/a.json").data == b"%d" % won.index(True)


def test_a_reader_sees_the_old_or_the_new_and_nothing_between(store):
    versions = [bytes([number]) * (1 << 20) for number in range(1, 9)]
    store.swap("aliases/a.json", versions[0], None)

    def write():
        for data in versions * 2:
            store.swap("aliases/a.json", data, store.read("aliases/a.json").version)

    observed = {store.read("aliases/a.json").data}
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            observed.add(store.read("aliases/a.json").data)
        writing.result()
    observed.add(store.read("aliases/a.json").data)
    assert len(observed) > 1
    assert observed <= set(versions)


def test_entries_have_the_prefix(store):
    for key in ("costs/a/1.jsonl", "costs/a/2.jsonl", "costs/ab/3.jsonl", "blobs/4"):
        store.create(key, key.encode())
    assert sorted(entry.key for entry in store.entries("costs/a/")) == [
        "costs/a/1.jsonl",
        "costs/a/2.jsonl",
    ]
    sizes = {entry.key: entry.size_bytes for entry in store.entries("costs/")}
    assert sizes == dict.fromkeys(
        ["costs/a/1.jsonl", "costs/a/2.jsonl", "costs/ab/3.jsonl"], 15
    ) | {"costs/ab/3.jsonl": 16}
    assert all(entry.age_s < 60 for entry in store.entries("costs/"))


def test_a_listing_of_several_pages(store):
    keys = {f"probe/{number:04}" for number in range(1003)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.swap(key, b"", None), keys))
    assert {entry.key for entry in store.entries("probe/")} == keys


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a b", "a\n", "x" * 900]
)
def test_a_bad_key_is_refused(store, key):
    with pytest.raises(StoreError, match="cannot be a name"):
        check_key(key)
    with pytest.raises(StoreError, match="cannot be a name"):
        store.read(key)


def test_a_store_that_nobody_wrote_is_empty_and_stays_so(address, tmp_path):
    store = open_store(address, writes=False)
    assert list(store.entries("bundles/")) == []
    assert store.remove_partial(0.0, dry_run=False) == []
    assert not (tmp_path / "store").exists()


def test_a_file_that_changes_during_its_upload_is_not_stored(store, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"before")
    create = type(store).create

    def change_first(self, key, source):
        file.write_bytes(b"after!!")
        create(self, key, source)

    monkeypatch.setattr(type(store), "create", change_first)
    with pytest.raises(StoreError, match="changed while it was being stored"):
        put_blob(store, file)
    assert list(store.entries("blobs/")) == []


def test_a_file_that_is_not_there(store, tmp_path):
    with pytest.raises(StoreError, match=r"nothing.*cannot be read: No such file"):
        put_blob(store, tmp_path / "nothing")

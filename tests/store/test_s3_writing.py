"""Writing blobs and aliases to a real S3 server behind a proxy that fails: once, and whole."""

import pytest

from collage.errors import StoreError
from collage.store.aliases import move_alias, read_alias
from collage.store.blobs import blob_key, digest_of, get_blob, put_blob
from collage.store.gc import collect_garbage
from tests.store.faults import BIG, DATA, DIGEST, KEY, again, named
from tests.store.proxy import FOREVER, Fault

WRITE_FAULTS = [
    Fault("timeout", "PUT|POST"),
    Fault("lost", "PUT|POST"),
    Fault("reset", "PUT|POST"),
    Fault("garble", "PUT"),
    Fault("status", "PUT|POST", times=2, status=500, code="InternalError"),
    Fault("status", "PUT|POST", times=2, status=503, code="SlowDown"),
    Fault("status", "PUT|POST", times=2, status=409, code="ConditionalRequestConflict"),
    Fault("status", "PUT|POST", times=1, status=412, code="PreconditionFailed"),
]


@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=named)
def test_a_write_survives_a_passing_fault(faulty, proxy, direct, fault):
    proxy.faults = [again(fault, path=KEY)]
    assert put_blob(faulty, DATA) == DIGEST
    assert proxy.faults[0].hit == fault.times
    assert get_blob(direct, DIGEST) == DATA


STEPS = [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId")]


@pytest.mark.parametrize(
    ("method", "step", "fault"),
    [
        (method, step, fault)
        for method, step in STEPS
        for fault in WRITE_FAULTS
        if fault.status != 412 and (fault.kind != "garble" or method == "PUT")
    ],
    ids=lambda first: named(first) if isinstance(first, Fault) else first,
)
def test_parts_survive_a_passing_fault(faulty, proxy, direct, bucket, method, step, fault):
    proxy.faults = [again(fault, method=method, path=step)]
    digest = put_blob(faulty, BIG)
    assert proxy.faults[0].hit >= 1
    assert get_blob(direct, digest) == BIG
    remaining = bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", ())
    # where the answer to a start was lost, nobody knows the upload's id: `collage gc` removes it
    assert len(remaining) <= (step == "uploads" and fault.kind == "lost")


@pytest.mark.parametrize("fault", WRITE_FAULTS, ids=named)
@pytest.mark.parametrize("exists", [False, True])
def test_an_alias_moves_once_whatever_happens(faulty, proxy, direct, fault, exists):
    first, two = digest_of(b"one"), digest_of(b"two")
    if exists:
        move_alias(direct, "a", first)
    proxy.faults = [again(fault, path="aliases/")]
    assert move_alias(faulty, "a", two)
    assert proxy.faults[0].hit == fault.times
    actual = read_alias(direct, "a")
    assert (actual.bundle, actual.previous) == (two, first if exists else None)


def test_a_412_for_another_writers_move_is_lost(faulty, proxy, direct):
    """Somebody moves the alias between the reading and the writing."""
    first, two = digest_of(b"one"), digest_of(b"two")
    observed = faulty.read("aliases/a.json")
    assert observed is None
    move_alias(direct, "a", first)
    proxy.faults = [Fault("status", "PUT", status=500, code="InternalError")]
    assert not faulty.swap("aliases/a.json", b"other", None)
    with pytest.raises(StoreError, match="somebody moved it"):
        move_alias(faulty, "a", digest_of(b"three"), expected=two)
    assert read_alias(direct, "a").bundle == first


def test_a_blob_that_is_used_again_is_young_again(faulty, proxy, monkeypatch):
    """Age cannot be faked on a real server; so everything above 0 seconds counts as old here."""
    put_blob(faulty, DATA)
    put_blob(faulty, DATA)
    assert proxy.count("PUT", KEY) == 1
    monkeypatch.setattr("collage.store.s3.REFRESH_AGE_S", -1.0)
    put_blob(faulty, DATA)
    assert proxy.count("PUT", KEY, 200) == 2


def test_the_last_step_of_a_multipart_upload_has_the_condition(faulty, proxy, direct):
    digest = digest_of(BIG)
    stat = faulty.stat

    def somebody_is_faster(key):
        actual = stat(key)
        if actual is None:
            put_blob(direct, BIG)
        return actual

    faulty.stat = somebody_is_faster
    assert put_blob(faulty, BIG) == digest
    assert proxy.count("PUT", "partNumber", 200) == 3
    assert proxy.count("POST", "uploadId", 412) == 1
    assert proxy.count("DELETE", "uploadId") == 1
    assert get_blob(direct, digest) == BIG


def test_a_multipart_upload_ends_without_the_condition_where_there_is_none(faulty, proxy, direct):
    proxy.faults = [Fault("conditional", "POST", "uploadId", FOREVER, 501, "NotImplemented")]
    digest = put_blob(faulty, BIG)
    assert proxy.count("POST", "uploadId", 200) == 1
    assert get_blob(direct, digest) == BIG


def test_a_service_without_a_list_of_uploads_is_swept_all_the_same(faulty, proxy, caplog):
    garbage = blob_key(put_blob(faulty, DATA))
    proxy.faults = [Fault("status", "GET", "uploads", FOREVER, 501, "NotImplemented")]
    assert [entry.key for entry in collect_garbage(faulty, 0.0).deleted] == [garbage]
    assert "does not list unfinished uploads" in caplog.text

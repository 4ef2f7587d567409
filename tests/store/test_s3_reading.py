"""Reading from a real S3 server behind a proxy that fails: nothing wrong is served, errors say what to do."""

import time
from dataclasses import replace

import pytest
from botocore.response import StreamingBody
from urllib3.exceptions import SSLError

from collage.errors import DamagedError, StoreError
from collage.store import open_store
from collage.store.blobs import blob_key, fetch_blob, get_blob, put_blob
from collage.store.bundles import fetch_bundle, publish_bundle
from tests.store.faults import DATA, DIGEST, KEY, again, named
from tests.store.proxy import FOREVER, Fault

PASSING = [
    Fault("timeout"),
    Fault("reset"),
    Fault("slow"),
    Fault("truncate"),
    Fault("flip"),
    Fault("status", times=2, status=500, code="InternalError"),
    Fault("status", times=2, status=503, code="SlowDown"),
]


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
@pytest.mark.parametrize("fault", PASSING, ids=named)
def test_a_read_survives_a_passing_fault(bucket, proxy, direct, fault, checksum, tmp_path):
    put_blob(direct, DATA)
    store = open_store(bucket.address(proxy.url, checksum=checksum), writes=False)
    proxy.faults = [again(fault, path=KEY)]
    assert get_blob(store, DIGEST) == DATA
    assert proxy.faults[0].hit == fault.times
    proxy.faults = [again(fault, path=KEY)]
    fetch_blob(store, DIGEST, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA
    assert proxy.faults[0].hit == fault.times


LASTING = [
    (Fault("timeout"), "ReadTimeoutError.*run it again later.*timeout_s"),
    (Fault("reset"), "run it again later"),
    (Fault("truncate"), "run it again later"),
    (Fault("flip"), "changed or damaged|FlexibleChecksumError"),
    (Fault("status", status=500, code="InternalError"), "500 InternalError.*run it again later"),
    (Fault("status", status=503, code="SlowDown"), "503 SlowDown.*run it again later.*attempts"),
    (Fault("status", status=409, code="OperationAborted"), "409 OperationAborted"),
    (Fault("status", status=412, code="PreconditionFailed"), "412 PreconditionFailed"),
    (Fault("status", status=404, code="NoSuchBucket"), "404 NoSuchBucket.*create it"),
    (Fault("status", status=403, code="AccessDenied"), "403 AccessDenied.*s3:GetObject"),
    (Fault("status", status=403, code="InvalidAccessKeyId"), "check the credentials"),
    (Fault("status", status=400, code="ExpiredToken"), "expired: renew"),
]


@pytest.mark.parametrize(
    ("fault", "words"),
    LASTING,
    ids=lambda first: named(first) if isinstance(first, Fault) else "",
)
def test_a_lasting_fault_of_reading_is_explained(
    faulty, proxy, direct, bucket, fault, words, tmp_path
):
    put_blob(direct, DATA)
    proxy.faults = [again(fault, times=FOREVER)]
    with pytest.raises(StoreError, match=words) as caught:
        get_blob(faulty, DIGEST)
    assert bucket.name in str(caught.value)
    assert blob_key(DIGEST) in str(caught.value)
    with pytest.raises(StoreError, match=words):
        fetch_blob(faulty, DIGEST, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("checksum", ["when_supported", "when_required"])
def test_a_service_that_is_always_slow_is_waited_for(
    bucket, proxy, make_bundle, checksum, tmp_path
):
    """Bytes that come count as life: `timeout_s` is of silence, not of the whole."""
    store = open_store(bucket.address(proxy.url, checksum=checksum, timeout_s=1), writes=False)
    folder = make_bundle(weights_bin=DATA)
    proxy.faults = [Fault("slow", "GET|PUT|POST|HEAD", times=FOREVER)]
    publish_bundle(store, folder, ["a"])
    fetch_bundle(store, "a", tmp_path / "out")
    assert proxy.faults[0].hit > 5
    for file in folder.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_flipped_bits_are_noticed_without_the_services_checksum(bucket, proxy, direct, tmp_path):
    put_blob(direct, DATA)
    store = open_store(bucket.address(proxy.url, checksum="when_required"), writes=False)
    proxy.faults = [Fault("flip", times=FOREVER)]
    with pytest.raises(DamagedError, match="changed or damaged"):
        get_blob(store, DIGEST)
    with pytest.raises(DamagedError, match="changed or damaged"):
        fetch_blob(store, DIGEST, tmp_path / "copy")


@pytest.mark.parametrize(
    "fault", [Fault("timeout"), Fault("status", status=503, code="SlowDown")], ids=["hang", "503"]
)
def test_a_deadline_ends_all_repetitions(bucket, proxy, fault):
    """Ten attempts of a second each, and their pauses, would take much longer."""
    settings = {"attempts": 10, "timeout_s": 0.5, "deadline_s": 1.5}
    store = open_store(bucket.address(proxy.url, **settings), writes=False)
    proxy.faults = [replace(fault, method="GET|PUT|HEAD", times=FOREVER)]
    for act in (lambda: store.read("probe/a"), lambda: store.swap("probe/a", b"x", None)):
        start = time.monotonic()
        with pytest.raises(StoreError, match="run it again later"):
            act()
        assert time.monotonic() - start < 8.0
    assert store.url
    proxy.faults = []
    assert store.swap("probe/a", b"x", None)
    assert store.read("probe/a").data == b"x"


def test_a_tls_error_within_a_body_is_read_again(bucket, proxy, direct, monkeypatch):
    put_blob(direct, DATA)
    store = open_store(bucket.address(proxy.url), writes=False)
    read, failures = StreamingBody.read, iter(range(2))

    def fail_twice(self, amt=None):
        if next(failures, None) is not None:
            raise SSLError("decryption failed or bad record mac")
        return read(self, amt)

    monkeypatch.setattr(StreamingBody, "read", fail_twice)
    assert get_blob(store, DIGEST) == DATA
    failures = iter(range(100))
    with pytest.raises(StoreError, match=r"SSLError.*TLS fails"):
        get_blob(store, DIGEST)


def test_a_listing_without_tokens_goes_on_after_its_last_key(direct, monkeypatch):
    keys = {f"probe/{number:032x}" for number in range(5)}
    for key in keys:
        direct.swap(key, b"", None)
    call = direct.client.call

    def short_page_without_token(operation, key, **parameters):
        page = call(operation, key, **parameters, MaxKeys=2)
        page.pop("NextContinuationToken", None)
        return page

    monkeypatch.setattr(direct.client, "call", short_page_without_token)
    assert sorted(entry.key for entry in direct.entries("probe/")) == sorted(keys)

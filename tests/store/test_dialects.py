"""Stores in services that differ from AWS: what works, what is refused, and what the error advises."""

from urllib.request import urlopen

import pytest

from collage.errors import RetainedError, StoreError
from collage.store import open_store
from collage.store.aliases import move_alias, read_alias
from collage.store.blobs import blob_key, digest_of, get_blob, put_blob
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.gc import collect_garbage
from tests.store.dialect_server import DialectServer, Refusal
from tests.store.dialects import SUITABLE, UNSUITABLE, Dialect

LARGE = b"0123456789abcdef" * (6 << 16)
"""Of two parts."""


@pytest.fixture
def serve(credentials):
    servers = []

    def start(dialect):
        servers.append(DialectServer(dialect))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def named(dialect):
    return dialect.name


@pytest.mark.parametrize("dialect", SUITABLE, ids=named)
def test_a_store_in_a_service_with_conditions(serve, dialect, make_bundle, tmp_path, monkeypatch):
    server = serve(dialect)
    store = open_store(server.address())
    monkeypatch.setattr("collage.store.s3_writer.COPIED_BYTES", 5 << 20)
    first = publish_bundle(store, make_bundle("first"), ["ocr"]).digest
    second = publish_bundle(store, make_bundle("second", plan_json=b"[2]"), ["ocr"]).digest
    alias = read_alias(store, "ocr")
    assert (alias.bundle, alias.previous) == (second, first)
    assert not store.swap("aliases/ocr.json", b"late", None)
    fetch_bundle(store, "ocr", tmp_path / "out")
    garbage = {blob_key(put_blob(store, LARGE)), blob_key(put_blob(store, b"garbage"))}
    assert len(list(store.entries(""))) > 2 * 3, "of several pages"
    store.delete("probe/" + "0" * 32)
    sweep = collect_garbage(store, 0.0, dry_run=False)
    assert {entry.key for entry in sweep.deleted} == garbage
    assert sweep.retained == ()
    assert get_blob(store, digest_of(b"[2]")) == b"[2]"


@pytest.mark.parametrize("dialect", [d for d in SUITABLE if d.weak or d.swap == "bare"], ids=named)
def test_pods_without_the_probe_move_pointers_too(serve, dialect):
    """They have no right to `probe/`, so they learn the form of ETags from the first refusal."""
    store = open_store(serve(dialect).address(probe="off"))
    for number in range(3):
        current = store.read("searches/a.json")
        version = None if current is None else current.version
        assert store.swap("searches/a.json", b"%d" % number, version)
        assert not store.swap("searches/a.json", b"stale", version)
    assert store.read("searches/a.json").data == b"2"


@pytest.mark.parametrize("dialect", UNSUITABLE, ids=named)
def test_writers_are_refused_where_conditions_are_missing(serve, dialect, make_bundle, tmp_path):
    server = serve(dialect)
    with pytest.raises(StoreError, match=r"no reliable conditional writes.*gs://.*a folder"):
        open_store(server.address())
    writer = open_store(server.address(probe="off"))
    digest = publish_bundle(writer, make_bundle()).digest
    fetch_bundle(open_store(server.address(), writes=False), digest, tmp_path / "out")


@pytest.mark.parametrize("dialect", [d for d in UNSUITABLE if "checksum" in d.settings], ids=named)
def test_missing_conditions_are_told_before_checksums(serve, dialect):
    """Who must change a setting only to read the next error has lost an hour."""
    with pytest.raises(StoreError, match="no reliable conditional writes"):
        open_store(serve(dialect).address(checksum="when_supported"))


@pytest.mark.parametrize("code", ["InvalidArgument", "SignatureDoesNotMatch"])
def test_refused_checksums_are_named_whatever_the_code(serve, code):
    server = serve(Dialect("strict", checksum=code))
    with pytest.raises(StoreError, match=rf"refuses checksums with 40\d {code}.*when_required"):
        open_store(server.address())
    assert server.objects == {}
    open_store(server.address(checksum="when_required"))


REFUSALS = {
    "expired token": (Refusal(400, "ExpiredToken"), "have expired: renew"),
    "foreign token": (Refusal(400, "InvalidToken"), "AWS_SESSION_TOKEN"),
    "wrong region": (Refusal(400, "AuthorizationHeaderMalformed"), "set `region` in"),
    "other region": (
        Refusal(301, "PermanentRedirect", headers=(("x-amz-bucket-region", "eu-west-3"),)),
        "set `region=eu-west-3` in"),
    "checksum": (Refusal(400, "InvalidArgument"), "checksum=when_required"),
    "disabled key": (Refusal(400, "KMS.DisabledException"), "encryption cannot be used: enable"),
    "key without right": (
        Refusal(403, "AccessDenied", "not authorized to perform: kms:GenerateDataKey on this"),
        "allow these credentials kms:GenerateDataKey"),
    "unknown access key": (Refusal(403, "InvalidAccessKeyId"), "access key is unknown"),
    "wrong secret": (Refusal(403, "SignatureDoesNotMatch"), "secret key is wrong"),
    "clock": (Refusal(403, "RequestTimeTooSkewed"), "clock is wrong"),
    "no bucket": (Refusal(404, "NoSuchBucket"), "create it"),
    "no right": (Refusal(403, "AccessDenied"), "s3:PutObject, s3:DeleteObject"),
    "one right": (
        Refusal(403, "AccessDenied", "user is not authorized to perform: s3:PutObject on resource"),
        "lack s3:PutObject: grant it"),
    "a policy": (
        Refusal(403, "AccessDenied", "perform: s3:PutObject with an explicit deny in a policy"),
        "A policy denies s3:PutObject explicitly"),
    "too fast": (Refusal(503, "SlowDown"), "asks for fewer requests"),
    "archive": (Refusal(403, "InvalidObjectState"), "is in an archive: restore it"),
}  # fmt: skip


@pytest.fixture(scope="module")
def refusing():
    """A service for refusals, and a reader's store in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not a secret")
        server = DialectServer(Dialect("aws"))
        yield server, open_store(server.address(attempts=1), writes=False)
    server.close()


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_its_cause_in_every_operation(refusing, credentials, name):
    server, store = refusing
    server.refusal, advice = REFUSALS[name]
    with pytest.raises(StoreError, match=advice) as caught:
        open_store(server.address(attempts=1))
    assert "conditional" not in str(caught.value)
    operations = [
        lambda: store.read("probe/a"),
        lambda: store.create("probe/a", b"content"),
        lambda: store.delete("probe/a"),
        lambda: list(store.entries("probe/")),
    ]
    if server.refusal.status != 404:  # of HEAD, a missing object
        operations.append(lambda: store.stat("probe/a"))
    for operation in operations:
        with pytest.raises(StoreError, match=advice) as caught:
            operation()
        assert str(server.refusal.status) in str(caught.value)
        assert server.refusal.text not in str(caught.value), "the service's text is untrusted"


@pytest.fixture
def locked(serve):
    """A service, a store in it, and garbage that a retention rule keeps."""
    server = serve(Dialect("locked"))
    store = open_store(server.address())
    kept = blob_key(put_blob(store, b"kept"))
    server.retained = ("team/collage/blobs/",)
    return server, store, kept


def test_a_sweep_tells_what_a_retention_rule_keeps(locked):
    server, store, kept = locked
    store.create("probe/" + "0" * 32, b"garbage")
    for _ in range(2):
        sweep = collect_garbage(store, 0.0, dry_run=False)
        assert sweep.retained == (kept,)
        assert kept not in {entry.key for entry in sweep.deleted}
        assert f"team/collage/{kept}" in server.objects
    assert not any(key.startswith("team/collage/probe/") for key in server.objects)


def test_writing_again_what_is_kept_is_no_error(locked, monkeypatch):
    _, store, _ = locked
    monkeypatch.setattr("collage.store.s3.REFRESH_AGE_S", -1.0)
    assert get_blob(store, put_blob(store, b"kept")) == b"kept"


def test_a_kept_pointer_cannot_move_and_says_why(serve):
    server = serve(Dialect("locked"))
    store = open_store(server.address())
    move_alias(store, "ocr", digest_of(b"one"))
    server.retained = ("team/collage/aliases/",)
    with pytest.raises(RetainedError, match=r"retention rule of the bucket.*leave out the prefix"):
        move_alias(store, "ocr", digest_of(b"two"))
    assert read_alias(store, "ocr").bundle == digest_of(b"one")


def test_an_answer_of_another_program_is_an_error(serve, monkeypatch):
    server = serve(Dialect("aws"))
    store = open_store(server.address())
    put_blob(store, b"content")
    call = store.client.call

    def without(*names):
        def answer(operation, key, **parameters):
            full = call(operation, key, **parameters)
            return {name: value for name, value in full.items() if name not in names}

        return answer

    monkeypatch.setattr(store.client, "call", without("ETag", "LastModified"))
    key = blob_key(digest_of(b"content"))
    for operation in (lambda: store.read(key), lambda: store.stat(key)):
        with pytest.raises(StoreError, match="another program answers there"):
            operation()


def test_a_listing_that_makes_no_progress_ends(serve, monkeypatch):
    server = serve(Dialect("aws", tokens=False))
    store = open_store(server.address(), writes=False)
    server.objects = {f"team/collage/probe/{number:032x}": b"" for number in range(9)}
    assert len(list(store.entries("probe/"))) == 9
    call = store.client.call

    def from_the_start(operation, key, **parameters):
        return call(operation, key, **parameters | {"Marker": ""})

    monkeypatch.setattr(
        store.client, "call", lambda o, k, **p: from_the_start("list_objects", k, **p)
    )
    with pytest.raises(StoreError, match="without saying where it goes on"):
        list(store.entries("probe/"))


def test_a_link_is_signed_and_opens_without_credentials(serve):
    server = serve(Dialect("aws"))
    store = open_store(server.address(), writes=False)
    store.create("probe/a", b"<html>")
    with urlopen(store.link("probe/a", 60, "text/html"), timeout=30) as answer:
        assert answer.read() == b"<html>"

"""Stores in Google Cloud Storage and Azure, against answers as the services document them."""

import sys
import traceback

import pytest

from collage.errors import OptionError, RetainedError, StoreError
from collage.store import open_store
from collage.store.aliases import read_alias
from collage.store.blobs import blob_key, digest_of, get_blob, put_blob
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.cloud_settings import parse_cloud
from collage.store.gc import collect_garbage
from tests.store.conftest import NO_OBSTORE
from tests.store.dialect_server import Refusal

LARGE = b"0123456789abcdef" * (6 << 16)
"""Of two parts."""


@pytest.fixture(params=["gs", "az"])
def server(request, monkeypatch):
    pytest.importorskip("obstore", reason=NO_OBSTORE)
    from tests.store.cloud_server import KEY, CloudServer

    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    created = CloudServer(request.param)
    yield created
    created.close()


def test_a_store_in_a_cloud(server, make_bundle, tmp_path):
    store = open_store(server.address())
    assert server.objects == {}, "the probe leaves nothing"
    first = publish_bundle(store, make_bundle("first"), ["ocr"]).digest
    second = publish_bundle(store, make_bundle("second", plan_json=b"[2]"), ["ocr"]).digest
    alias = read_alias(store, "ocr")
    assert (alias.bundle, alias.previous) == (second, first)
    fetch_bundle(store, "ocr", tmp_path / "out")
    (tmp_path / "large").write_bytes(LARGE)
    garbage = {blob_key(put_blob(store, tmp_path / "large")), blob_key(put_blob(store, b"waste"))}
    assert get_blob(store, digest_of(LARGE)) == LARGE
    assert len(list(store.entries(""))) > 2 * 3, "of several pages"
    sweep = collect_garbage(store, 0.0, dry_run=False)
    assert {entry.key for entry in sweep.deleted} == garbage
    assert get_blob(store, digest_of(b"[2]")) == b"[2]"


def test_a_pointer_moves_by_compare_and_swap(server):
    store = open_store(server.address())
    assert store.swap("aliases/a.json", b"one", None)
    assert not store.swap("aliases/a.json", b"two", None)
    version = store.read("aliases/a.json").version
    assert store.swap("aliases/a.json", b"two", version)
    assert not store.swap("aliases/a.json", b"three", version)
    store.delete("aliases/a.json")
    store.delete("aliases/a.json")
    assert not store.swap("aliases/a.json", b"four", version)
    assert store.read("aliases/a.json") is None
    assert not store.copy("aliases/a.json", "trash/aliases/a.json")


@pytest.mark.parametrize("server", ["az"], indirect=True)  # Google signs with a service account
def test_a_link_is_signed_and_names_the_object(server):
    link = open_store(server.address(), writes=False).link("probe/a", 3600, "text/html")
    assert link.startswith(f"{server.url}/")
    assert "/models/team/collage/probe/a?" in link
    assert "sig=" in link


REFUSALS = {
    "no identity": (Refusal(401, "InvalidAuthenticationInfo"), "credentials are missing or wrong"),
    "no right": (Refusal(403, "AccessDenied"), "grant (roles/storage|Storage Blob)"),
    "no bucket": (Refusal(404, "NoSuchBucket"), "does not exist: create it"),
    "bad request": (Refusal(400, "InvalidArgument"), "400 InvalidArgument.*check the address"),
    "busy": (Refusal(503, "ServerBusy"), "run it again later"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_its_cause(server, name):
    refusal, advice = REFUSALS[name]
    server.refusal = Refusal(refusal.status, refusal.code, "private text sig=secret")
    with pytest.raises(StoreError, match=advice) as caught:
        open_store(server.address(deadline_s=5))
    assert f"{server.kind}://models/team/collage/probe/" in str(caught.value)
    assert "private" not in "".join(traceback.format_exception(caught.value))


RETENTION = {
    "gs": Refusal(403, "RetentionPolicyNotMet", "Object is subject to bucket's retention policy"),
    "az": Refusal(409, "BlobImmutableDueToPolicy", "not permitted as the blob is immutable"),
}


def test_what_a_retention_rule_keeps_is_told(server):
    store = open_store(server.address())
    store.create("probe/" + "0" * 32, b"content")
    server.refusal = RETENTION[server.kind]
    with pytest.raises(RetainedError, match=r"retention rule.*leave out the prefix"):
        store.swap("aliases/a.json", b"one", None)


def test_an_emulator_without_conditions_is_refused(server, monkeypatch):
    store = open_store(server.address(probe="off"))
    from collage.store.cloud_store import probe_cloud

    put = store.client.put
    monkeypatch.setattr(store.client, "put", lambda key, data, mode: put(key, data, "overwrite"))
    with pytest.raises(StoreError, match=r"two writers create one object.*a folder"):
        probe_cloud(store)
    assert server.objects == {}


def test_nothing_listens(server):
    address = server.address(attempts=1, deadline_s=2)
    server.close()
    with pytest.raises(StoreError, match=r"does not answer.*check the address"):
        open_store(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("gs://", "names no bucket"),
        ("gs://KEY:PRIVATE@bucket", "holds credentials"),
        ("az://container?account=a&key=PRIVATE", "unknown setting 'key'"),
        ("gs://bucket?account=a", "only az:// has an account"),
        ("gs://bucket?attempts=many", "attempts is a number"),
        ("gs://bucket?attempts=0", "attempts are at least 1"),
        ("gs://bucket?part_bytes=1", "part_bytes at least"),
        ("gs://bucket?probe=perhaps", "probe is on or off"),
        ("az://container?endpoint=http://KEY:PRIVATE@host", "holds credentials"),
        ("gs://[bucket", "malformed"),
    ],
)
def test_bad_addresses_are_refused_and_not_repeated(address, reason):
    with pytest.raises(OptionError, match=reason) as caught:
        open_store(address)
    assert "PRIVATE" not in "".join(traceback.format_exception(caught.value, chain=True))


def test_an_address_has_bucket_prefix_and_settings():
    settings = parse_cloud("az://container/team/collage/?account=models&timeout_s=5")
    assert (settings.scheme, settings.bucket, settings.prefix) == (
        "az",
        "container",
        "team/collage",
    )
    assert (settings.account, settings.timeout_s) == ("models", 5.0)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    for name in ("collage.store.cloud_store", "collage.store.cloud_client"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(OptionError, match=r"needs obstore.*pip install 'collage\[obstore\]'"):
        open_store("gs://bucket/prefix")

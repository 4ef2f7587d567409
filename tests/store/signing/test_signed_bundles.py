"""Signed bundles and aliases in a store: what a reader with keys takes, and what it refuses."""

import json
import os
import re

import pytest

from collage.errors import BundleError, StoreError
from collage.runtime.signature import is_statement, trusted_keys, verify_statement
from collage.store import statement as statement_module
from collage.store.alias_counters import Verification
from collage.store.aliases import (
    AliasSigning,
    list_aliases,
    move_alias,
    read_alias,
    read_record,
    remove_alias,
)
from collage.store.blobs import blob_key, digest_of, seal
from collage.store.bundle_aliases import assign_alias
from collage.store.bundle_statements import BundleSigning
from collage.store.bundles import fetch_bundle, publish_bundle, unpublish_bundle
from collage.store.gc import collect_garbage
from collage.store.manifests import bundle_key
from collage.store.statement import SignedModel
from tests.store.signing.records import put, record, signing
from tests.support.keys import make_key


def test_a_signed_bundle_is_fetched_by_alias_and_digest(store, publish, checks, tmp_path):
    digest = publish("one", "ocr/production")
    out = tmp_path / "out"
    for name in ("ocr/production", digest, "ocr/production"):
        assert fetch_bundle(store, name, out, verification=checks) == digest
    verify_statement(lambda name: (out / name).read_bytes(), os.listdir(out), checks.keys)
    assert fetch_bundle(store, "ocr/production", out) == digest, "without keys too"
    actual = read_record(store, "ocr/production", checks.keys)
    assert (actual.model, actual.bundle) == ("ocr", digest)


def test_another_teams_bundle_under_an_alias_is_refused(store, publish, checks, tmp_path):
    publish("ours", "ocr/production")
    theirs = publish("theirs", "faces/production", "faces")
    put(store, "ocr/production", record(store, "faces/production").data)
    with pytest.raises(BundleError, match="record of the alias 'faces/production'"):
        fetch_bundle(store, "ocr/production", tmp_path / "out", verification=checks)
    put(store, "ocr/production", seal({"record": json.dumps(
        {"alias": "ocr/production", "bundle": theirs, "previous": None, "model": "ocr",
         "counter": 1 << 40, "token": ""})}))  # fmt: skip
    with pytest.raises(BundleError, match="not signed"):
        fetch_bundle(store, "ocr/production", tmp_path / "out", verification=checks)
    assert not (tmp_path / "out").exists()


def test_record_and_statement_must_name_one_model(store, publish, key, checks, tmp_path):
    theirs = publish("theirs", "faces/production", "faces")
    by = AliasSigning.by(key.signer)
    with pytest.raises(BundleError, match="model 'faces', and the alias is 'ocr/production'"):
        assign_alias(store, "ocr/production", theirs, signing=by)
    with pytest.raises(BundleError, match="cannot stand for"):
        move_alias(store, "ocr/production", theirs, signing=by, model="faces")
    assert record(store, "ocr/production") is None
    move_alias(store, "ocr/production", theirs, signing=by, model="ocr")
    with pytest.raises(BundleError, match="model 'faces', and the alias of 'ocr'"):
        fetch_bundle(store, "ocr/production", tmp_path / "out", verification=checks)


def test_a_team_with_its_own_key_cannot_take_an_alias(store, publish, key, tmp_path):
    theirs = make_key(tmp_path, "theirs")
    trust = tmp_path / "trust.json"
    trust.write_text(json.dumps({"keys": [
        {"file": key.public.name, "models": ["ocr"]},
        {"file": theirs.public.name, "models": ["faces"]}]}))  # fmt: skip
    checks = Verification(trusted_keys([trust]), tmp_path / "seen")
    publish("ours", "ocr/production")
    publish("theirs", "ocr/production", "ocr", theirs)
    with pytest.raises(BundleError, match="may not sign"):
        fetch_bundle(store, "ocr/production", tmp_path / "out", verification=checks)


def test_a_bundle_signed_for_two_models_serves_both(store, make_bundle, key, checks, tmp_path):
    folder = make_bundle()
    for model in ("ocr", "faces"):
        publish_bundle(store, folder, [f"{model}/a"], signing(key, model))
    for model in ("ocr", "faces"):
        fetch_bundle(store, f"{model}/a", tmp_path / "out", verification=checks)


@pytest.mark.parametrize("swapped", ["model.so", "model.so and manifest", "statement of another"])
def test_swapped_content_is_refused_by_fetch(store, publish, checks, tmp_path, swapped):
    digest = publish("one", "ocr/production")
    out = tmp_path / "out"
    if swapped == "model.so":
        store.delete(blob_key(digest_of(b"code")))
        store.create(blob_key(digest_of(b"code")), b"evil")
        with pytest.raises(StoreError, match="damaged"):
            fetch_bundle(store, digest, out, verification=checks)
        return
    manifest = json.loads(store.read(bundle_key(digest)).data)
    manifest["files"]["model.so"] = digest_of(b"evil")
    evil = json.dumps(manifest).encode()
    store.create(blob_key(digest_of(b"evil")), b"evil")
    store.create(bundle_key(digest_of(evil)), evil)
    said = "not signed"
    if swapped == "statement of another":
        (entry,) = store.entries(f"signatures/{digest}/")
        name = entry.key.rpartition("/")[2]
        store.create(f"signatures/{digest_of(evil)}/{name}", store.read(entry.key).data)
        said = "of another manifest"
    with pytest.raises(BundleError, match=said):
        fetch_bundle(store, digest_of(evil), out, verification=checks)
    assert not out.exists()


def test_an_unsigned_alias_is_signed_by_moving_it_again(store, publish, checks, key):
    digest = publish("one", "ocr/a")
    by = AliasSigning.by(key.signer)
    put(store, "ocr/b", seal({"record": json.dumps(
        {"alias": "ocr/b", "bundle": digest, "previous": None, "model": "", "counter": 1,
         "token": ""})}))  # fmt: skip
    with pytest.raises(BundleError, match="not signed"):
        read_record(store, "ocr/b", checks.keys)
    assert assign_alias(store, "ocr/b", digest, signing=by)
    assert not assign_alias(store, "ocr/b", digest, signing=by)
    assert read_record(store, "ocr/b", checks.keys).bundle == digest


def test_a_store_is_rotated_to_a_new_key(store, publish, key, tmp_path):
    digest = publish("one", "ocr/a")
    new = make_key(tmp_path, "new")
    pair = Verification(trusted_keys([key.public, new.public]), tmp_path / "seen")
    fetch_bundle(store, "ocr/a", tmp_path / "out", verification=pair)
    by = AliasSigning.by(new.signer, pair.keys)
    publish_bundle(store, tmp_path / "out", ["ocr/a"], BundleSigning(by, SignedModel("ocr")))
    for keys in (pair.keys, trusted_keys([new.public])):
        checks = Verification(keys, tmp_path / "seen")
        assert fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks) == digest


def test_a_revoked_key_moves_no_alias(store, publish, key, tmp_path):
    publish("one", "ocr/a")
    trust = tmp_path / "trust.json"
    new = make_key(tmp_path, "new")
    trust.write_text(json.dumps({"keys": [{"file": "new.pub"}], "revoked": [key.key_id]}))
    keys = trusted_keys([trust, key.public])
    with pytest.raises(BundleError, match="is revoked"):
        read_record(store, "ocr/a", keys)
    two = publish("two", "ocr/a", by=new)
    assert read_record(store, "ocr/a", keys).bundle == two


@pytest.mark.parametrize(
    "content",
    [{"record": "[]"}, {"record": "{}"}, {"record": "[" * 100_000}, {"envelope": "{}"}, {},
     {"record": '{"alias": "a", "bundle": "x", "previous": null, "model": "", "counter": 1}'},
     {"record": '{"alias": "a", "bundle": null, "previous": null, "model": "", "counter": -1}'},
     {"record": '{"alias": "a", "bundle": null, "previous": null, "model": 1, "counter": 1}'}],
)  # fmt: skip
def test_a_garbled_alias_is_said_to_be_damaged(store, content):
    put(store, "a", seal(content))
    for act in (
        lambda: read_alias(store, "a"),
        lambda: list(list_aliases(store)),
        lambda: move_alias(store, "a", digest_of(b"1")),
    ):
        with pytest.raises(StoreError, match="changed or damaged"):
            act()


def test_the_revision_is_told_by_the_image_or_the_checkout(monkeypatch):
    for reported, expected in (("0123abc", "0123abc"), ("unknown", "")):
        statement_module.revision.cache_clear()
        monkeypatch.setenv("SOURCE_REVISION", reported)
        assert statement_module.revision() == expected
    statement_module.revision.cache_clear()
    monkeypatch.delenv("SOURCE_REVISION")
    assert re.fullmatch("([0-9a-f]{40})?", statement_module.revision())


def test_gc_takes_the_statements_of_what_was_unpublished(store, publish, key):
    digest = publish("one", "ocr/a")
    assert len(list(store.entries("signatures/"))) == 1
    remove_alias(store, "ocr/a", signing=AliasSigning.by(key.signer))
    unpublish_bundle(store, digest)
    collect_garbage(store, 0.0, dry_run=False)
    assert list(store.entries("signatures/")) == []


def test_only_statements_are_fetched_beside_a_bundle(store, publish, checks, tmp_path):
    digest = publish("one", "ocr/a")
    store.create(f"signatures/{digest}/manifest.json", b"{}")
    store.create(f"signatures/{digest}/statement.{'0' * 16}.{'0' * 16}.dsse.json", b"x" * (2 << 20))
    fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert len(list(filter(is_statement, names))) == 1
    assert len(names) == 4

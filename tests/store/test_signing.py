"""Signed bundles and aliases in a store: what a reader with keys takes, and what it refuses."""

import json
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from collage.cli import main
from collage.errors import BundleError, StoreError
from collage.runtime.signature import is_statement, trusted_keys, verify_statement
from collage.store import alias_counters as seen_module
from collage.store import statement as statement_module
from collage.store.alias_counters import Verification, check_newest
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
from tests.support.keys import make_key


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


@pytest.fixture
def address(tmp_path):
    """Of a folder: what is signed does not depend on the kind of store."""
    return str(tmp_path / "store")


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path)


@pytest.fixture
def checks(key, tmp_path):
    """What a reader verifies with who trusts the key."""
    return Verification(trusted_keys([key.public]), tmp_path / "seen")


def signing(key, model="ocr", version=""):
    return BundleSigning(AliasSigning.by(key.signer), SignedModel(model, version))


@pytest.fixture
def publish(store, make_bundle, key):
    """Publish a signed bundle of its own content under an alias; return its digest."""

    def make(name, alias, model="ocr", by=key):
        folder = make_bundle(name, plan_json=json.dumps([name]).encode())
        return publish_bundle(store, folder, [alias], signing(by, model)).digest

    return make


def record(store, alias):
    return store.read(f"aliases/{alias}.json")


def put(store, alias, data):
    """Write as somebody who can write to the store and has no key."""
    actual = record(store, alias)
    assert store.swap(f"aliases/{alias}.json", data, actual.version if actual else None)


def test_a_signed_bundle_is_fetched_by_alias_and_digest(store, publish, checks, tmp_path):
    digest = publish("one", "ocr/production")
    out = tmp_path / "out"
    for name in ("ocr/production", digest, "ocr/production"):
        assert fetch_bundle(store, name, out, verification=checks) == digest
    verify_statement(lambda name: (out / name).read_bytes(), os.listdir(out), checks.keys)
    assert fetch_bundle(store, "ocr/production", out) == digest, "without keys too"
    actual = read_record(store, "ocr/production", checks.keys)
    assert (actual.model, actual.bundle) == ("ocr", digest)


def test_an_old_version_under_an_alias_is_refused(store, publish, checks, tmp_path):
    first = publish("one", "ocr/production")
    old = record(store, "ocr/production").data
    two = publish("two", "ocr/production")
    out = tmp_path / "out"
    assert fetch_bundle(store, "ocr/production", out, verification=checks) == two
    put(store, "ocr/production", old)
    assert read_alias(store, "ocr/production").bundle == first
    with pytest.raises(BundleError, match="set back"):
        fetch_bundle(store, "ocr/production", out, verification=checks)
    assert digest_of(out / "manifest.json") == two, "nothing was changed"


def test_a_roll_back_grows_the_counter_and_is_taken(store, publish, checks, key, tmp_path):
    first, two = publish("one", "ocr/production"), publish("two", "ocr/production")
    fetch_bundle(store, "ocr/production", tmp_path / "out", verification=checks)
    before = read_record(store, "ocr/production", checks.keys).counter
    by = AliasSigning.by(key.signer)
    assert assign_alias(store, "ocr/production", first, expected=two, signing=by)
    assert read_record(store, "ocr/production", checks.keys).counter > before
    actual = fetch_bundle(store, "ocr/production", tmp_path / "out", verification=checks)
    assert actual == first


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


def test_an_untrusted_counter_is_not_continued(store, publish, checks, key, tmp_path):
    digest = publish("one", "ocr/a")
    fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks)
    put(store, "ocr/a", seal({"record": json.dumps(
        {"alias": "ocr/a", "bundle": "0" * 64, "previous": None, "model": "ocr",
         "counter": (1 << 53) - 1, "token": ""})}))  # fmt: skip
    assert assign_alias(store, "ocr/a", digest, signing=AliasSigning.by(key.signer))
    assert read_record(store, "ocr/a", checks.keys).counter < 1 << 40


def test_after_a_lost_record_the_next_is_newer(store, publish, checks, monkeypatch, tmp_path):
    publish("one", "ocr/a")
    fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks)
    store.delete("aliases/ocr/a.json")
    later = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later)
    two = publish("two", "ocr/a")
    assert fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks) == two


def test_a_removed_alias_stays_removed_for_readers(store, publish, checks, key, tmp_path):
    digest = publish("one", "ocr/a")
    old = record(store, "ocr/a").data
    assert remove_alias(store, "ocr/a", expected=digest, signing=AliasSigning.by(key.signer))
    assert read_alias(store, "ocr/a") is None
    with pytest.raises(StoreError, match="no alias"):
        fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks)
    assert not remove_alias(store, "ocr/a")
    put(store, "ocr/a", old)
    with pytest.raises(BundleError, match="set back"):
        fetch_bundle(store, "ocr/a", tmp_path / "out", verification=checks)


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


def test_the_memory_of_counters_survives_and_is_checked(store, publish, checks, tmp_path):
    publish("one", "ocr/a")
    alias = read_record(store, "ocr/a", checks.keys)
    check_newest(checks.counters_dir, store.url, alias)
    check_newest(checks.counters_dir, store.url, alias)
    check_newest(checks.counters_dir, "another store", alias)
    (file, _) = sorted(checks.counters_dir.glob("*.json"))
    for file in checks.counters_dir.glob("*.json"):
        file.write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        check_newest(checks.counters_dir, store.url, alias)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match=r"cannot be remembered.*--cache-dir"):
        check_newest(tmp_path / "file", store.url, alias)


def test_one_counter_for_two_bundles_is_refused(store, publish, checks):
    publish("one", "ocr/a")
    alias = read_record(store, "ocr/a", checks.keys)
    check_newest(checks.counters_dir, store.url, alias)
    second = replace(alias, bundle=digest_of(b"2"))
    with pytest.raises(BundleError, match="set back"):
        check_newest(checks.counters_dir, store.url, second)


def test_the_memory_is_on_disk_before_it_is_believed(store, publish, checks, monkeypatch):
    publish("one", "ocr/a")
    steps = []
    for name in ("write_durably", "flush_folder"):
        real = getattr(seen_module, name)
        monkeypatch.setattr(
            seen_module, name, lambda *arguments, n=name, f=real: (steps.append(n), f(*arguments))
        )
    check_newest(checks.counters_dir, store.url, read_record(store, "ocr/a", checks.keys))
    assert steps == ["write_durably", "flush_folder"]


def test_readers_beside_each_other_keep_the_highest(tmp_path, store, publish, checks):
    publish("one", "ocr/a")
    alias = read_record(store, "ocr/a", checks.keys)
    created = [replace(alias, counter=alias.counter + number) for number in range(8)]

    def read(first):
        with suppress(BundleError):
            check_newest(checks.counters_dir, store.url, first)

    threads = [threading.Thread(target=read, args=(move,)) for move in created]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(BundleError, match="set back"):
        check_newest(checks.counters_dir, store.url, created[6])
    check_newest(checks.counters_dir, store.url, created[7])


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


def test_the_command_line_signs_and_verifies(address, store, make_bundle, key, tmp_path, capsys):
    folder, out = make_bundle(), tmp_path / "out"
    cache = ["--cache-dir", str(tmp_path / "cache")]
    fetch = ["fetch", address, "--alias", "ocr/a", str(out), *cache, "--verify-key"]
    assert main(["publish", str(folder), address, "--alias", "ocr/a"]) == 0
    assert main([*fetch, str(key.public)]) == 5
    assert "not signed" in capsys.readouterr().err
    assert not out.exists()
    sign = ["--sign-key", str(key.private)]
    assert main(["alias", address, "ocr/a", digest_of(folder / "manifest.json"), *sign]) == 5
    assert main(["publish", str(folder), address, "--alias", "ocr/a", *sign]) == 0
    assert main([*fetch, str(key.public)]) == 0
    second = make_key(tmp_path, "other")
    assert main([*fetch, str(second.public)]) == 5
    assert main([*fetch, str(second.public), "--verify-key", str(key.public)]) == 0
    assert main(["alias", address, "ocr/b", "ocr/a", *sign]) == 0
    assert main(["alias", address, "faces/a", "ocr/a", *sign]) == 5
    assert main(["unalias", address, "ocr/b", *sign]) == 0
    assert read_record(store, "ocr/b", trusted_keys([key.public])).bundle is None
    capsys.readouterr()
    assert main(["publish", str(folder), address, "--model", "ocr"]) == 2
    assert "add --sign-key" in capsys.readouterr().err


def test_what_is_promoted_by_alias_is_verified_too(address, store, publish, key, capsys):
    first = publish("one", "ocr/candidate")
    old = record(store, "ocr/candidate").data
    sign = ["--sign-key", str(key.private)]
    two = publish("two", "ocr/candidate")
    assert main(["alias", address, "ocr/production", "ocr/candidate", *sign]) == 0
    put(store, "ocr/candidate", old)
    assert main(["alias", address, "ocr/production", "ocr/candidate", *sign]) == 5
    assert "set back" in capsys.readouterr().err
    assert read_alias(store, "ocr/production").bundle == two
    assert main(["alias", address, "ocr/production", first, *sign]) == 0, "by digest it is meant"


def test_keys_may_come_from_the_environment(
    address, make_bundle, key, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    fetch = ["fetch", address, "--alias", "ocr/a", str(out), "--cache-dir", str(tmp_path / "cache")]
    monkeypatch.setenv("COLLAGE_VERIFY_KEYS", str(key.public))
    assert main(["publish", str(make_bundle()), address, "--alias", "ocr/a"]) == 0
    assert main(fetch) == 5
    monkeypatch.setenv("COLLAGE_SIGN_KEY", str(key.private))
    assert main(["publish", str(tmp_path / "bundle"), address, "--alias", "ocr/a"]) == 0
    assert main(fetch) == 0
    monkeypatch.setenv("COLLAGE_VERIFY_KEYS", str(tmp_path / "absent"))
    assert main(fetch) == 2


def test_a_bundle_is_signed_as_the_model_of_its_first_alias(store, make_bundle, key, tmp_path):
    folder, sign = make_bundle(), ["--sign-key", str(key.private)]
    manifest = json.loads((folder / "manifest.json").read_text())
    target = str(tmp_path / "target")
    assert main(["publish", str(folder), target, *sign]) == 2, "no name anywhere"
    manifest["provenance"] = {"models": [{"path": "words.onnx", "sha256": "0" * 64}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for options in ([], ["--alias", "ocr/a"], ["--alias", "ocr/a", "--model", "ocr/a"]):
        assert main(["publish", str(folder), target, *sign, *options]) == 0
    assert len(list(folder.glob("statement.*"))) == 3

"""Counters of aliases: a reader refuses a record that was set back."""

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from collage.errors import BundleError, StoreError
from collage.store import alias_counters as seen_module
from collage.store.alias_counters import check_newest
from collage.store.aliases import AliasSigning, read_alias, read_record, remove_alias
from collage.store.blobs import digest_of, seal
from collage.store.bundle_aliases import assign_alias
from collage.store.bundles import fetch_bundle
from tests.store.signing.records import put, record


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

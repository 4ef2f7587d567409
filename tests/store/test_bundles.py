"""Publishing and fetching, in a folder and on a real S3 server: by many at once, and killed anywhere."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from collage.errors import BundleError, DamagedError, StoreError
from collage.store import open_store
from collage.store.aliases import list_aliases, move_alias, read_alias
from collage.store.blobs import blob_key, digest_of
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.gc import collect_garbage
from collage.store.manifests import bundle_files, list_bundles, read_bundle
from tests.store.test_protocol import overwrite

PUBLISHERS = 16


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def check_whole(store, tmp_path):
    """Every bundle that a reader can see is whole."""
    for number, digest in enumerate(list_bundles(store)):
        fetch_bundle(store, digest, tmp_path / f"whole-{number}")
        fetched = contents(tmp_path / f"whole-{number}")
        for name, expected in bundle_files(fetched.pop("manifest.json")).items():
            assert digest_of(fetched.pop(name)) == expected
        assert fetched == {}
    for alias in list_aliases(store):
        read_bundle(store, alias.bundle)


def start(mode, address, folder, alias):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.publisher", mode, address, folder, alias],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process


def go(process):
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    process.stdin.write("\n")
    process.stdin.flush()


def test_what_is_fetched_is_what_was_published(store, make_bundle, tmp_path):
    folder = make_bundle(report_html=b"<p>" * 1000)
    created = publish_bundle(store, folder, ["ocr/production", "ocr/latest"])
    assert created.moved == ("ocr/production", "ocr/latest")
    for name in ("ocr/production", created.digest):
        assert fetch_bundle(store, name, tmp_path / "fetched") == created.digest
        assert contents(tmp_path / "fetched") == contents(folder)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_publishing_again_changes_nothing(store, make_bundle):
    folder = make_bundle()
    first = publish_bundle(store, folder, ["a"])
    before = {entry.key for entry in store.entries("")}
    again = publish_bundle(store, folder, ["a"])
    assert (again.digest, again.moved) == (first.digest, ())
    assert {entry.key for entry in store.entries("")} == before


def test_an_alias_moves_and_remembers(store, make_bundle):
    first = publish_bundle(store, make_bundle("one"), ["a"]).digest
    two = publish_bundle(store, make_bundle("two", plan_json=b"[2]"), ["a"]).digest
    actual = read_alias(store, "a")
    assert (actual.bundle, actual.previous) == (two, first)
    with pytest.raises(StoreError, match="somebody moved it"):
        move_alias(store, "a", first, expected=first)
    assert not move_alias(store, "a", two)
    assert move_alias(store, "a", first, expected=two)
    assert [(alias.name, alias.bundle) for alias in list_aliases(store)] == [("a", first)]


def test_unknown_names_are_errors_that_say_what_to_do(store, tmp_path):
    with pytest.raises(StoreError, match=r"no alias 'ocr'.*collage aliases"):
        fetch_bundle(store, "ocr", tmp_path / "out")
    with pytest.raises(StoreError, match=r"no bundle 0000.*publish"):
        fetch_bundle(store, "0" * 64, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_bundle_is_not_published(store, make_bundle):
    folder = make_bundle()
    (folder / "plan.json").write_bytes(b"[1]")
    with pytest.raises(BundleError, match="changed"):
        publish_bundle(store, folder, ["a"])
    assert list(store.entries("bundles/")) == []
    assert read_alias(store, "a") is None


@pytest.mark.parametrize("name", ["../evil", "a/b", "manifest.json", ".hidden", ""])
def test_a_manifest_cannot_name_files_elsewhere(name):
    manifest = json.dumps({"files": {name: "0" * 64}}).encode()
    with pytest.raises(BundleError, match="lacks or garbles"):
        bundle_files(manifest)


def test_a_damaged_file_keeps_the_old_bundle(store, address, request, make_bundle, tmp_path):
    folder = make_bundle("new", plan_json=b"[2]")
    fetch_bundle(store, publish_bundle(store, make_bundle("old")).digest, tmp_path / "out")
    old = contents(tmp_path / "out")
    created = publish_bundle(store, folder, ["a"])
    overwrite(address, request, blob_key(digest_of(b"[2]")), b"[3]")
    with pytest.raises(DamagedError):
        fetch_bundle(store, "a", tmp_path / "out")
    assert contents(tmp_path / "out") == old
    overwrite(address, request, f"bundles/{created.digest}.json", b"{}")
    with pytest.raises(DamagedError, match=f"bundles/{created.digest}.json"):
        fetch_bundle(store, "a", tmp_path / "out")
    overwrite(address, request, "aliases/a.json", b"half of")
    with pytest.raises(StoreError, match=r"aliases/a.json.*changed or damaged"):
        fetch_bundle(store, "a", tmp_path / "out")
    assert contents(tmp_path / "out") == old


def test_fetching_overwrites_no_other_folder(store, make_bundle, tmp_path):
    digest = publish_bundle(store, make_bundle()).digest
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(BundleError, match="not overwritten"):
        fetch_bundle(store, digest, tmp_path / "photos")


@pytest.mark.slow
def test_sixteen_publishers_of_one_bundle(process_address, make_bundle, tmp_path):
    folder = make_bundle(weights_bin=bytes(range(256)) * 4096)
    running = [start("once", process_address, folder, "ocr/production") for _ in range(PUBLISHERS)]
    try:
        for process in running:
            go(process)
        answers = [process.communicate(timeout=120) for process in running]
        assert [process.returncode for process in running] == [0] * PUBLISHERS, answers
    finally:
        for process in running:
            process.kill()
            process.communicate()
    reported = [json.loads(out) for out, _ in answers]
    store = open_store(process_address, writes=False)
    assert len(list(list_bundles(store))) == 1
    assert {answer["bundle"] for answer in reported} == set(list_bundles(store))
    assert sum(len(answer["moved"]) for answer in reported) == 1
    assert read_alias(store, "ocr/production").previous is None
    check_whole(store, tmp_path)


def test_sixteen_movers_of_one_alias_each_move_it_once(store, make_bundle):
    from concurrent.futures import ThreadPoolExecutor

    digests = [digest_of(b"%d" % number) for number in range(PUBLISHERS)]
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        moved = list(pool.map(lambda digest: move_alias(store, "a", digest), digests))
    assert moved == [True] * PUBLISHERS
    assert read_alias(store, "a").previous in digests


@pytest.mark.full
@pytest.mark.slow
def test_a_killed_publisher_leaves_no_half_bundle(process_address, tmp_path):
    chance = random.Random(7)
    for round_ in range(6):
        folder = tmp_path / f"in-{round_}"
        folder.mkdir()
        process = start("forever", process_address, folder, "a")
        try:
            go(process)
            time.sleep(0.1 + chance.random())
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        (check := tmp_path / f"check-{round_}").mkdir()
        check_whole(open_store(process_address, writes=False), check)
    store = open_store(process_address)
    assert list(list_bundles(store)), "the publishers were killed before they did anything"
    collect_garbage(store, 0.0, dry_run=False)
    assert collect_garbage(store, 0.0).deleted == ()
    assert store.remove_partial(0.0, dry_run=True) == []
    (tmp_path / "after").mkdir()
    check_whole(store, tmp_path / "after")

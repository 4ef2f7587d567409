"""The cache of fetched files, removal of bundles and names, and what a fetch imports."""

import json
import os
import signal
import subprocess
import sys

import pytest

from collage.cli import main
from collage.errors import StoreError
from collage.store import aliases as aliases_module
from collage.store import atomic_folder as folder_module
from collage.store import open_store
from collage.store.aliases import list_aliases, move_alias, read_alias, remove_alias
from collage.store.blobs import blob_key, digest_of
from collage.store.bundles import fetch_bundle, publish_bundle, unpublish_bundle
from collage.store.cache import BundleCache
from collage.store.gc import collect_garbage
from collage.store.manifests import list_bundles, read_bundle
from tests.store.test_bundles import contents


@pytest.fixture
def transfers(store, monkeypatch):
    """Keys that were read or downloaded from the store, not from the cache."""
    observed = []
    for method in ("read", "download"):
        real = getattr(type(store), method)

        def spy(self, key, *tail, real=real):
            if self is store:
                observed.append(key)
            return real(self, key, *tail)

        monkeypatch.setattr(type(store), method, spy)
    return observed


def test_a_second_fetch_transfers_no_file(store, transfers, make_bundle, tmp_path):
    folder = make_bundle(report_html=b"<p>" * 1000)
    publish_bundle(store, folder, ["a"])
    cache = BundleCache(tmp_path / "cache")
    fetch_bundle(store, "a", tmp_path / "one", cache=cache)
    assert len([key for key in transfers if key.startswith("blobs/")]) == 3
    transfers.clear()
    fetch_bundle(store, "a", tmp_path / "two", cache=cache)
    assert transfers == ["aliases/a.json"]
    assert contents(tmp_path / "two") == contents(folder)
    publish_bundle(store, make_bundle("next", plan_json=b"[2]"), ["a"])
    transfers.clear()
    fetch_bundle(store, "a", tmp_path / "two", cache=cache)
    assert [key for key in transfers if key.startswith("blobs/")] == [blob_key(digest_of(b"[2]"))]


def test_a_damaged_cache_is_not_believed(store, make_bundle, tmp_path):
    folder = make_bundle()
    publish_bundle(store, folder, ["a"])
    cache = BundleCache(tmp_path / "cache")
    fetch_bundle(store, "a", tmp_path / "out", cache=cache)
    for file in (tmp_path / "cache").rglob("blobs/*/*"):
        file.write_bytes(b"wrong")
    for _ in range(2):
        fetch_bundle(store, "a", tmp_path / "out", cache=cache)
        assert contents(tmp_path / "out") == contents(folder)
    actual = {file.read_bytes() for file in (tmp_path / "cache").rglob("blobs/*/*")}
    assert b"wrong" not in actual


def test_a_cache_that_cannot_be_written_costs_no_fetch(store, make_bundle, tmp_path):
    publish_bundle(store, make_bundle(), ["a"])
    (tmp_path / "file").write_text("no folder")
    cache = BundleCache(tmp_path / "file")
    fetch_bundle(store, "a", tmp_path / "out", cache=cache)
    assert (tmp_path / "out" / "model.so").read_bytes() == b"code"


FETCH = """
import sys
from collage.cli import main
code = main(sys.argv[1:])
unwanted = {"pydantic", "onnx", "tvm", "onnxruntime", "openvino", "rich", "prefect", "kubernetes"}
print(code, sorted(unwanted & set(sys.modules)))
"""


def test_fetching_imports_no_compiler_and_no_pydantic(process_address, make_bundle, tmp_path):
    publish_bundle(open_store(process_address), make_bundle(), ["a"])
    fetch = ["fetch", process_address, "--alias", "a", str(tmp_path / "out")]
    command = [sys.executable, "-c", FETCH, *fetch]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


@pytest.mark.parametrize("words", [[], ["a"], ["a", "b", "c"], ["--alias", "a"]])
def test_fetch_says_how_it_is_written(words, tmp_path, capsys):
    assert main(["fetch", str(tmp_path), *words]) == 2
    assert "--alias NAME DIR" in capsys.readouterr().err


def test_a_name_is_removed_by_compare_and_swap(store):
    first, two = digest_of(b"1"), digest_of(b"2")
    move_alias(store, "a", first)
    with pytest.raises(StoreError, match="somebody moved it"):
        remove_alias(store, "a", expected=two)
    assert remove_alias(store, "a", expected=first)
    assert not remove_alias(store, "a")
    assert read_alias(store, "a") is None
    assert list(list_aliases(store)) == []
    assert move_alias(store, "a", two)
    assert read_alias(store, "a").bundle == two


def test_gc_takes_a_bundle_that_was_unpublished(address, store, make_bundle, tmp_path, capsys):
    shared = publish_bundle(store, make_bundle("kept", weights_bin=b"shared"), ["b"]).digest
    old = publish_bundle(store, make_bundle(plan_json=b"[1]", weights_bin=b"shared"), ["a"]).digest
    assert main(["unpublish", address, old]) == 6
    assert "a stands for it" in capsys.readouterr().err
    assert main(["unalias", address, "a", "--expect", old]) == 0
    assert main(["unpublish", address, old]) == 0
    assert main(["unpublish", address, old]) == 6
    assert list(list_bundles(store)) == [shared]
    swept = collect_garbage(store, 0.0, dry_run=False)
    deleted = {blob_key(digest_of(b"[1]")), f"trash/bundles/{old}.json"}
    assert {entry.key for entry in swept.deleted} == deleted
    fetch_bundle(store, "b", tmp_path / "out")


def test_an_alias_moved_during_unpublish_keeps_its_bundle(store, make_bundle, monkeypatch):
    digest = publish_bundle(store, make_bundle()).digest
    delete = type(store).delete

    def moved_first(self, key):
        if key.startswith("bundles/"):
            move_alias(store, "late", digest)
        delete(self, key)

    monkeypatch.setattr(type(store), "delete", moved_first)
    with pytest.raises(StoreError, match="late stands for it"):
        unpublish_bundle(store, digest)
    assert read_bundle(store, digest)
    assert aliases_module.read_alias(store, "late").bundle == digest


REPLACE = """
import os, signal, sys
from pathlib import Path
from collage.store import atomic_folder as folder
from collage.store.scratch import scratch_folder

step, output = sys.argv[1], Path(sys.argv[2])
calls = 0

def killing(real):
    def call(*given):
        global calls
        if step == f"before {calls}":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*given)
        if step == f"after {calls}":
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return result
    return call

folder.exchange = killing(folder.exchange)
Path.rename = killing(Path.rename)
with scratch_folder(output.parent, f".{output.name}.partial-") as scratch:
    (scratch / "new").mkdir()
    (scratch / "new" / "manifest.json").write_text("new")
    folder.replace_folder(scratch / "new", output, scratch)
print(calls)
"""


@pytest.mark.parametrize(
    ("step", "expected"), [("before 0", "old"), ("after 0", "new"), ("never", "new")]
)
def test_a_kill_during_a_replacement_leaves_one_whole_folder(tmp_path, step, expected):
    first, second = tmp_path / "one", tmp_path / "other"
    first.mkdir()
    second.mkdir()
    if not folder_module.exchange(first, second):
        pytest.skip(f"the file system of {tmp_path} cannot exchange two names")
    output = tmp_path / "bundle"
    output.mkdir()
    (output / "manifest.json").write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", REPLACE, step, str(output)], capture_output=True, text=True
    )
    assert done.returncode == (0 if step == "never" else -signal.SIGKILL), done.stderr
    if step == "never":
        assert done.stdout == "1\n", "more than one step"
        assert not list(tmp_path.glob(".bundle*"))
    assert (output / "manifest.json").read_text() == expected


def test_without_an_exchange_two_renames_do(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "exchange", lambda *_: False)
    for name in ("scratch", "scratch/new", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(name)
    folder_module.replace_folder(tmp_path / "scratch/new", tmp_path / "out", tmp_path / "scratch")
    assert (tmp_path / "out" / "manifest.json").read_text() == "scratch/new"
    assert (tmp_path / "scratch" / "old" / "manifest.json").read_text() == "out"
    assert os.listdir(tmp_path / "out") == ["manifest.json"]


def test_fetch_json(store, address, make_bundle, tmp_path, capsys):
    digest = publish_bundle(store, make_bundle(), ["a"]).digest
    command = ["fetch", address, "a", "-o", str(tmp_path / "out"), "--no-cache", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["bundle"] == digest

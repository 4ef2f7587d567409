"""What is promised to be on disk is: every file is flushed before its name, every name after that.

A power loss keeps what was flushed and nothing else. The recorder sees all flushes, renames and new
folders of an act, and checks each rename and each new folder against what was flushed by then.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from collage.bundle.save import save_bundle
from collage.cost import Cost, CostKey, LocalCostTable
from collage.pipeline.search_checkpoint import CheckpointFile, SearchCheckpoint
from collage.runtime.signature import is_statement
from collage.store import atomic_folder as folders
from collage.store import open_store
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.cache import BundleCache
from collage.store.record_keys import record_keys

STATEMENT = f"statement.{'0' * 16}.{'1' * 16}.dsse.json"


class Recorder:
    """Events of an act: what was flushed, with its content, what got a name, and which folders are new."""

    def __init__(self, monkeypatch, root):
        self.events, self._real, self._root = [], {}, root
        for name in ("fsync", "fdatasync", "replace", "rename", "mkdir", "link"):
            self._real[name] = getattr(os, name)
            monkeypatch.setattr(os, name, getattr(self, f"_{name}"))
        exchange = folders.exchange

        def exchanged(first, second):
            self._named(Path(first), Path(second))
            return exchange(first, second)

        monkeypatch.setattr(folders, "exchange", exchanged)

    def _fsync(self, file, name="fsync"):
        self._real[name](file)
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        self.events.append(("flush", path, _content(path)))

    def _fdatasync(self, file):
        self._fsync(file, "fdatasync")

    def _replace(self, source, target, **extra):
        self._named(Path(source), Path(target))
        self._real["replace"](source, target, **extra)

    def _rename(self, source, target, **extra):
        self._named(Path(source), Path(target))
        self._real["rename"](source, target, **extra)

    def _link(self, source, target, **extra):
        self._named(Path(source), Path(target))
        self._real["link"](source, target, **extra)

    def _mkdir(self, path, *extra, **named):
        self._real["mkdir"](path, *extra, **named)
        self.events.append(("name", Path(path), []))

    def _named(self, source, target):
        """A rename: all of what is renamed must be on disk by now."""
        parts = [source, *source.rglob("*")] if source.is_dir() else [source]
        self.events.append(("name", target, [(part, _content(part)) for part in parts]))

    def check(self):
        """Check that every name that stays was given to what is on disk, and is on disk itself."""
        names = 0
        for place, (kind, path, parts) in enumerate(self.events):
            if kind != "name" or not path.exists() or "tmp" in path.relative_to(self._root).parts:
                continue
            names += 1
            flushed = [event[1:] for event in self.events[:place] if event[0] == "flush"]
            for part in parts:
                assert part in flushed, f"{part[0]} was not on disk when it became {path}"
            after = [event[1] for event in self.events[place:] if event[0] == "flush"]
            assert path.parent in after, f"the name {path} is not on disk"
        return names


def _content(path):
    return sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()


@pytest.fixture
def recorder(monkeypatch, tmp_path, make_bundle):
    make_bundle()
    return Recorder(monkeypatch, tmp_path)


def made(tmp_path):
    return tmp_path / "new" / "deep" / "store"


def saved(tmp_path, output):
    code = tmp_path / "code.so"
    code.write_bytes(b"code")

    class Made:
        def model_dump_json(self, indent):
            return "{}"

    texts = {"plan.json": "[]", "report.html": "<p>"}
    golden = {"main/input/x": np.zeros(3)}
    save_bundle(output, code, texts, golden=golden, manifest=lambda digests: Made())


ACTS = {
    "publish": lambda t: publish_bundle(open_store(made(t)), t / "bundle", ["ocr/production"]),
    "costs": lambda t: LocalCostTable(made(t)).put(CostKey("k"), Cost(1e-3)),
    "checkpoint": lambda t: CheckpointFile(made(t) / "searches" / "s").write(
        SearchCheckpoint.of(0.0)
    ),
    "key": lambda t: record_keys(made(t)),
    "save": lambda t: saved(t, made(t) / "bundle"),
}


@pytest.mark.parametrize("act", ACTS)
def test_content_is_on_disk_before_its_name_and_that_after(recorder, tmp_path, act):
    ACTS[act](tmp_path)
    assert recorder.check() >= 3, "the new folders at least"
    flushed = {event[1] for event in recorder.events if event[0] == "flush"}
    for folder, _, files in os.walk(tmp_path / "new"):
        if "tmp" not in Path(folder).relative_to(tmp_path).parts:
            assert Path(folder).parent in flushed
            renamed = act == "save"  # it was flushed under another name, which `check` has seen
            assert not files or renamed or Path(folder) in flushed, folder


def test_a_bundle_that_is_replaced_is_on_disk_before_it_is_there(recorder, tmp_path):
    for _ in range(2):
        saved(tmp_path, tmp_path / "out")
    assert recorder.check() == 2


def test_a_fetched_bundle_is_on_disk_with_its_signatures(recorder, tmp_path):
    assert is_statement(STATEMENT)
    (tmp_path / "bundle" / STATEMENT).write_bytes(b"{}")
    store = open_store(tmp_path / "store")
    publish_bundle(store, tmp_path / "bundle", ["a"])
    for cache in (None, BundleCache(tmp_path / "cache")):
        fetch_bundle(store, "a", tmp_path / "new" / "out", cache=cache)
        recorder.check()
    flushed = {event[1].name for event in recorder.events if event[0] == "flush"}
    assert {"model.so", "plan.json", "manifest.json", STATEMENT} <= flushed


def test_what_is_there_already_is_on_disk_too(recorder, tmp_path):
    """Another writer may have been killed between the rename and the flush of the folder."""
    open_store(tmp_path / "store").create("probe/a", b"x")
    recorder.events.clear()
    open_store(tmp_path / "store").create("probe/a", b"x")
    assert [event[1].name for event in recorder.events] == ["probe", "store"]


def test_a_recorder_sees_what_is_not_flushed(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr("collage.store.atomic_folder.flush_tree", lambda folder: None)
    saved(tmp_path, tmp_path / "out")
    with pytest.raises(AssertionError, match="was not on disk when it became"):
        recorder.check()


WRITER = """
import os, sys
os.umask(int(sys.argv[2], 8))
from pathlib import Path
from collage.store import open_store
from collage.store.bundles import publish_bundle
if len(sys.argv) > 4:
    os.setgroups([int(sys.argv[5])])
    os.setgid(int(sys.argv[4]))
    os.setuid(int(sys.argv[4]))
publish_bundle(open_store(sys.argv[1]), Path(sys.argv[3]), ["ocr/production"])
"""


def write(root, umask, bundle, *account):
    done = subprocess.run(
        [sys.executable, "-c", WRITER, root, umask, bundle, *map(str, account)],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def modes(root):
    kinds = {"folder": set(), "file": set()}
    for path in root.rglob("*"):
        kinds["folder" if path.is_dir() else "file"].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return kinds


@pytest.mark.parametrize(
    ("root", "umask", "folder", "file"),
    [
        (None, "002", "0o775", "0o664"),
        (None, "022", "0o755", "0o644"),
        (None, "077", "0o700", "0o600"),
        (0o2775, "022", "0o2775", "0o664"),
        (0o2770, "077", "0o2770", "0o660"),
        (0o700, "002", "0o700", "0o600"),
    ],
)
def test_what_is_made_has_the_mode_of_the_root(tmp_path, make_bundle, root, umask, folder, file):
    store = tmp_path / "store"
    if root is not None:
        store.mkdir()
        store.chmod(root)
    write(store, umask, make_bundle())
    assert modes(store) == {"folder": {folder}, "file": {file}}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("umask", ["002", "022", "077"])
def test_two_users_of_a_group_share_a_store(tmp_path, make_bundle, umask):
    group = 54321
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    store = tmp_path / "store"
    store.mkdir()
    os.chown(store, 0, group)
    store.chmod(0o2770)
    first, two = make_bundle("one"), make_bundle("two", model_so=b"another")
    write(store, umask, first, 50001, group)
    write(store, umask, two, 50002, group)
    write(store, umask, first, 50002, group)
    write(store, umask, two, 50001, group)
    assert {path.stat().st_gid for path in store.rglob("*")} == {group}
    assert {path.stat().st_uid for path in store.rglob("*")} == {50001, 50002}

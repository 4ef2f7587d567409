"""Local caches are bounded: by the time since a file was used, and by their size."""

import os
import time

import pytest

from collage.options import Options
from collage.pipeline.compile_context import open_compile_context
from collage.store import open_store
from collage.store.bundles import fetch_bundle, publish_bundle
from collage.store.cache import BundleCache
from collage.store.cache_pruning import CACHES, DAY_S, FETCHED, STAMP, Limit, prune, prune_cache


def put(folder, name, days, size=10):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(size))
    os.utime(file, (time.time() - days * DAY_S,) * 2)
    return file


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != STAMP)


def test_old_files_go_first_then_the_oldest_above_the_size(tmp_path):
    for days in range(6):
        put(tmp_path, f"below/{days}", days)
    assert prune(tmp_path, Limit(4.5 * DAY_S, 1000)) == 10
    assert names(tmp_path) == ["0", "1", "2", "3", "4"]
    assert prune(tmp_path, Limit(100 * DAY_S, 25)) == 30
    assert names(tmp_path) == ["0", "1"]


def test_reading_counts_as_use(tmp_path):
    file = put(tmp_path, "read", 50)
    os.utime(file, (time.time(), time.time() - 50 * DAY_S))
    assert prune(tmp_path, Limit(DAY_S, 1000)) == 0


def test_links_and_what_they_point_to_stay(tmp_path):
    put(tmp_path / "elsewhere", "precious", 500)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "link").symlink_to(tmp_path / "elsewhere" / "precious")
    (tmp_path / "cache" / "folder").symlink_to(tmp_path / "elsewhere")
    assert prune(tmp_path / "cache", Limit(0.0, 0)) == 0
    assert names(tmp_path / "elsewhere") == ["precious"]


@pytest.mark.parametrize("name", CACHES)
def test_every_folder_of_the_cache_has_a_limit(tmp_path, name):
    days = CACHES[name].keep_s / DAY_S
    put(tmp_path / name, "old", days + 1)
    put(tmp_path / name, "new", days - 1)
    put(tmp_path, "record-key-0", 10_000)
    assert prune_cache(tmp_path) == 10
    assert names(tmp_path) == ["new", "record-key-0"]
    put(tmp_path / name, "old", days + 1)
    assert prune_cache(tmp_path) == 0, "once a day"
    os.utime(tmp_path / STAMP, (0, 0))
    assert prune_cache(tmp_path) == 10


def test_a_compile_prunes_the_cache(tmp_path):
    put(tmp_path / "costs", "old.jsonl", 1000)
    with open_compile_context(Options(cache_dir=tmp_path, backends=("onnxruntime",))):
        pass
    assert names(tmp_path / "costs") == []


def test_what_fetches_use_stays_in_the_cache(tmp_path, make_bundle):
    store = open_store(tmp_path / "store")
    publish_bundle(store, make_bundle("used"), ["used"])
    publish_bundle(store, make_bundle("unused", model_so=b"another"), ["unused"])
    cache = BundleCache(tmp_path / "cache")
    for alias in ("used", "unused"):
        fetch_bundle(store, alias, tmp_path / alias, cache=cache)
    assert len(names(tmp_path / "cache")) == 5
    long_ago = time.time() - FETCHED.keep_s - DAY_S
    for file in (tmp_path / "cache").rglob("*"):
        os.utime(file, (long_ago, long_ago))
    fetch_bundle(store, "used", tmp_path / "again", cache=cache)
    BundleCache(tmp_path / "cache")
    assert len(names(tmp_path / "cache")) == 3
    fetch_bundle(store, "unused", tmp_path / "anew", cache=BundleCache(tmp_path / "cache"))


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path):
    assert prune_cache(tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()

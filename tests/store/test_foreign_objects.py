"""Objects that people and their tools leave in a store: none of them stops anything."""

import pytest

from collage.cost import CostKey, LocalCostTable, SharedCostTable
from collage.registry.files import FileRegistry
from collage.store.aliases import list_aliases
from collage.store.base import is_ours
from collage.store.blobs import blob_key, put_blob
from collage.store.bundles import publish_bundle
from collage.store.gc import collect_garbage
from collage.store.manifests import list_bundles
from tests.store.test_protocol import overwrite

NAMES = (".DS_Store", "notes of may.txt", "notes.txt", "README", "old/.json")
FOLDERS = ("aliases/", "blobs/", "bundles/", "costs/", "costs/any/", "searches/", "trash/bundles/")


@pytest.fixture
def leave(address, request, tmp_path):
    """A function that leaves an object; a name that ends with "/" is a console's folder marker."""

    def put(key):
        if not address.startswith("s3:"):
            if key.endswith("/"):
                return
            (tmp_path / "store" / key).parent.mkdir(parents=True, exist_ok=True)
        overwrite(address, request, key, b"" if key.endswith("/") else b"not of Collage")

    return put


@pytest.fixture
def foreign_keys(leave):
    keys = {folder + name for folder in FOLDERS for name in NAMES}
    for key in keys | set(FOLDERS):
        leave(key)
    return keys


def keys(store):
    return {entry.key for entry in store.entries("")}


def test_aliases_bundles_and_costs_are_read(store, make_bundle, foreign_keys, tmp_path, caplog):
    digest = publish_bundle(store, make_bundle(), ["ocr/production"]).digest
    assert [(alias.name, alias.bundle) for alias in list_aliases(store)] == [
        ("ocr/production", digest)
    ]
    assert list(list_bundles(store)) == [digest]
    table = SharedCostTable(store, LocalCostTable(tmp_path), lambda: 0.0)
    assert table.get(CostKey("absent")) is None
    assert table.corrupt == 0
    assert (
        "objects below bundles/ are not of Collage and are ignored, e.g. 'bundles/" in caplog.text
    )
    caplog.clear()
    assert list(list_bundles(store)) == [digest]
    assert "are ignored" not in caplog.text, "the warning comes once"


def test_a_sweep_goes_on_and_leaves_them(store, make_bundle, foreign_keys):
    publish_bundle(store, make_bundle(), ["ocr/production"])
    garbage = blob_key(put_blob(store, b"garbage"))
    assert [entry.key for entry in collect_garbage(store, 0.0, dry_run=False).deleted] == [garbage]
    assert foreign_keys <= keys(store)
    assert not any(map(is_ours, foreign_keys))


def test_a_registry_lists_its_models(store, leave, tmp_path):
    registry = FileRegistry(store, "candidate", "optimized")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    registry.set_alias(registry.add("ocr", "1", {"model.onnx": model}))
    for key in (
        "a b/aliases/candidate.json",
        ".trash/aliases/candidate.json",
        "ocr/.DS_Store",
        "ocr/",
    ):
        leave(key)
    assert [version.name for version in registry.candidates()] == ["ocr"]

"""No interleaving of two writers leaves an alias, or a request, on something that is not there.

Every order of two writers with at most three changes of turn is run, and after each operation of the store
a reader looks. Sweeps run without their day of grace, so that nothing but the order of steps protects."""

import itertools
import json
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from collage.pipeline import request as requests
from collage.pipeline.request import read_request, submit
from collage.store import bundles, gc, open_store
from collage.store.aliases import list_aliases, move_alias, read_alias
from collage.store.blobs import blob_key, get_blob, put_blob
from collage.store.bundle_aliases import assign_alias
from collage.store.bundles import publish_bundle, unpublish_bundle
from collage.store.gc import collect_garbage
from collage.store.manifests import bundle_files, bundle_key, read_bundle
from tests.store.stepped import count, interleavings, run


@contextmanager
def held(path):
    """The files of a model that nobody looks into."""
    yield SimpleNamespace(own=SimpleNamespace(path=path), external={})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One operation at a time in each writer, and none waits for the disk."""
    monkeypatch.setattr(gc, "REQUESTS_AT_ONCE", 1)
    monkeypatch.setattr(bundles, "TRANSFERS_AT_ONCE", 1)
    monkeypatch.setattr(gc, "_FOLDERS", ("blobs/", "requests/", "trash/"))
    monkeypatch.setattr("os.fsync", lambda file: None)
    monkeypatch.setattr(requests, "open_model", lambda path: held(path))


@pytest.fixture
def stores(tmp_path):
    """Empty folder stores, one after the other."""
    numbers = itertools.count()

    def make():
        shutil.rmtree(tmp_path / f"store-{next(numbers) - 1}", ignore_errors=True)
        return open_store(tmp_path / f"store-{next(numbers)}")

    return make


def check_readers(store):
    """Whoever reads an alias now gets a whole bundle."""
    for alias in list_aliases(store):
        for digest in bundle_files(read_bundle(store, alias.bundle)).values():
            get_blob(store, digest)


def check_in_place(store):
    """What aliases name is published, not in the trash."""
    for alias in list_aliases(store):
        assert store.stat(bundle_key(alias.bundle)), alias.name
        for digest in bundle_files(read_bundle(store, alias.bundle)).values():
            assert store.stat(blob_key(digest)), digest


def explore(stores, prepare, acts):
    """Run all interleavings; yield the store and both writers after each."""
    steps = []
    for act in acts:
        store = stores()
        prepare(store)
        steps.append(count(store, act))
    for order in interleavings((steps[0], steps[1])):
        store = stores()
        prepare(store)
        writers = run(store, acts, order, lambda store=store: check_readers(store))
        check_readers(store)
        check_in_place(store)
        yield store, writers


def sweep(store):
    return collect_garbage(store, 0.0, dry_run=False)


@pytest.fixture
def small(make_bundle):
    """A bundle of one file."""
    folder = make_bundle("small")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "plan.json").unlink()
    del manifest["files"]["plan.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.full
def test_a_sweep_beside_a_publisher(stores, small):
    """The publisher relies on a blob that is garbage when the sweep marks."""
    folder = small

    def prepare(store):
        put_blob(store, b"code")

    outcomes = set()
    acts = (lambda store: publish_bundle(store, folder, ["a"]), sweep)
    for store, (publisher, sweeper) in explore(stores, prepare, acts):
        assert publisher.error is None
        assert sweeper.error is None
        assert read_alias(store, "a").bundle == publisher.found.digest
        outcomes.add((len(sweeper.found.deleted) > 0, bool(sweeper.found.restored)))
    assert len(outcomes) > 2, "the sweep took it, left it, and put it back"


def test_an_alias_beside_an_unpublisher(stores, small, make_bundle):
    folder, second = small, make_bundle("other", model_so=b"another")
    digests = {}

    def prepare(store):
        digests["new"] = publish_bundle(store, folder).digest
        digests["old"] = publish_bundle(store, second, ["a"]).digest

    outcomes = set()
    acts = (
        lambda store: assign_alias(store, "a", digests["new"]),
        lambda store: unpublish_bundle(store, digests["new"]),
    )
    for store, (mover, remover) in explore(stores, prepare, acts):
        outcomes.add((mover.error is None, remover.error is None))
        stands = read_alias(store, "a").bundle
        assert stands == digests["new" if mover.error is None else "old"]
    assert {(True, False), (False, True)} <= outcomes
    assert (True, True) not in outcomes


@pytest.mark.full
def test_a_sweep_beside_one_who_publishes_again(stores, small):
    folder = small
    digests = {}

    def prepare(store):
        digests["it"] = publish_bundle(store, folder).digest
        unpublish_bundle(store, digests["it"])

    acts = (lambda store: publish_bundle(store, folder, ["a"]), sweep)
    for store, (publisher, sweeper) in explore(stores, prepare, acts):
        assert (publisher.error, sweeper.error) == (None, None)
        assert read_alias(store, "a").bundle == digests["it"]


def test_a_sweep_beside_a_request(stores, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a model")

    def prepare(store):
        put_blob(store, b"a model")

    acts = (lambda store: submit(store, model), sweep)
    for store, (submitter, sweeper) in explore(stores, prepare, acts):
        assert (submitter.error, sweeper.error) == (None, None)
        request = read_request(store, submitter.found.digest)
        assert store.stat(blob_key(request.models[0].model))


def test_the_next_sweep_puts_back_what_an_unpublisher_left(stores, make_bundle):
    """It was killed after it removed the manifest; the alias was moved before that."""
    store = stores()
    folder = make_bundle()
    digest = publish_bundle(store, folder).digest
    assert store.copy(bundle_key(digest), f"trash/{bundle_key(digest)}")
    store.delete(bundle_key(digest))
    move_alias(store, "a", digest)
    check_readers(store)
    assert sweep(store).restored == (bundle_key(digest),)
    check_in_place(store)
    assert sweep(store).restored == ()


def test_the_next_sweep_puts_back_what_a_killed_one_left(stores, make_bundle):
    store = stores()
    digest = publish_bundle(store, make_bundle(), ["a"]).digest
    for blob in bundle_files(read_bundle(store, digest)).values():
        assert store.copy(blob_key(blob), f"trash/{blob_key(blob)}")
        store.delete(blob_key(blob))
    check_readers(store)
    assert len(sweep(store).restored) == 2
    check_in_place(store)


def test_the_trash_is_kept_for_a_day(stores, make_bundle):
    store = stores()
    digest = publish_bundle(store, make_bundle()).digest
    unpublish_bundle(store, digest)
    for _ in range(2):
        assert collect_garbage(store, 3600.0, dry_run=False).deleted == ()
    assert read_bundle(store, digest)
    assert {entry.key for entry in store.entries("blobs/")}
    sweep(store)
    sweep(store)
    assert [entry.key for entry in store.entries("") if entry.key != "lock"] == []


@pytest.mark.parametrize(
    "order", [(0, 4, 9), (0, 6, 12), (1, 6, 3), (1, 9, 6), (1, 12, 5)], ids=str
)
def test_a_sweep_beside_a_publisher_in_s3(s3_address, small, order):
    """Some orders on a real server; the argument is about the protocol, which both implement."""
    store = open_store(s3_address, writes=False)
    put_blob(store, b"code")
    acts = (lambda store: publish_bundle(store, small, ["a"]), sweep)
    publisher, sweeper = run(store, acts, order, lambda: check_readers(store))
    assert (publisher.error, sweeper.error) == (None, None)
    check_in_place(store)
    assert read_alias(store, "a").bundle == publisher.found.digest

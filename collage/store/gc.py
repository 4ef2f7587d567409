"""Mark and sweep: deletion of unreachable objects, in two steps.

Manifests reach blobs (every bundle stays, with or without an alias), requests reach their models and
samples, results their reports. The sweep removes unreachable blobs and samples, records unused for longer
than `Retention`, objects of finished runs and of the start-up check, signatures of removed bundles, and
unfinished uploads.

A writer may add a reference between the mark and the sweep. So the sweep first moves objects to the trash,
still readable, and then reads the references again: an object with a new reference is restored. A writer
checks the target after writing a reference (`collage.store.blobs.keep_blobs`,
`collage.store.bundle_aliases.assign_alias`). If the check came before the move, the reference was there
before the second reading; if it came after the move, the writer saw the gap and sent the content again.
Objects are deleted after `older_s` in the trash. So if a sweep or a writer is killed between its two steps,
the next sweep still restores the objects (unless two sweeps with `older_s` of 0 run at once). A manifest in
the trash (`collage unpublish`) keeps its files, and is restored if an alias names it.

An object that a retention rule of the storage keeps (object lock) stays, is told, and stops nothing.

An unreadable manifest stops the sweep before it begins: its references are unknown. Linear in the number of
objects, with one request each, plus the requests for deleted objects.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from collage.errors import RetainedError
from collage.runtime.json_fields import is_digest
from collage.store.aliases import list_aliases
from collage.store.base import BlobDigest, Entry, Store, own_entries
from collage.store.blobs import blob_key, trash_key, unseal
from collage.store.manifests import bundle_files, bundle_key, list_bundles, read_bundle
from collage.store.records import Fields, RecordError, parse_object

log = logging.getLogger(__name__)

OLDER_S = 24 * 3600.0
DAY_S = 24 * 3600.0
REQUESTS_AT_ONCE = 8
TRASH = "trash/"
_FOLDERS = (
    "answers/", "blobs/", "costs/", "kernels/", "probe/", "requests/", "results/", "samples/",
    "searches/", "shards/", "signatures/", TRASH, "tuning/", "usage/",
)  # fmt: skip


@dataclass(frozen=True)
class Retention:
    """Lifetimes of records after their last write, in seconds.

    Attributes:
        requests: compile requests and their models; a new submission restarts the time, and a request with
            a retained result stays.
        results: results of requests; a result with an alias on its bundle stays.
        searches: search checkpoints; a search without a checkpoint runs again.
        costs: measurements and tuning records; removed ones are measured again on demand.
        shards: shard reports of pods.
        usage: records of what pods ran, for costs of past days.
    """

    requests: float = 30 * DAY_S
    results: float = 90 * DAY_S
    searches: float = 90 * DAY_S
    costs: float = 180 * DAY_S
    shards: float = 30 * DAY_S
    usage: float = 400 * DAY_S

    def of(self, key: str) -> float | None:
        """Return the lifetime of an object, in seconds, or None if it is no record."""
        folders = {"tuning": "costs"}
        folder = key.partition("/")[0]
        return getattr(self, folders.get(folder, folder), None)


@dataclass(frozen=True)
class Sweep:
    """The deleted objects of a sweep (with `dry_run`: the candidates).

    Attributes:
        restored: keys of objects that are referenced again.
        retained: keys of garbage that a retention rule of the storage keeps.
    """

    dry_run: bool
    deleted: tuple[Entry, ...]
    partial: tuple[str, ...]
    kept_blobs: int
    bundles: int
    restored: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()

    @property
    def bytes_deleted(self) -> int:
        return sum(entry.size_bytes for entry in self.deleted)


def collect_garbage(
    store: Store,
    older_s: float = OLDER_S,
    *,
    dry_run: bool = True,
    retention: Retention | None = None,
) -> Sweep:
    """Delete unreachable objects older than `older_s`.

    Args:
        older_s: least age of a deleted object, in seconds, and its time in the trash; younger objects may
            belong to an active writer.
        retention: lifetimes of records; None is the default.

    Raises:
        StoreError: the store fails, or a manifest is damaged; in the second case nothing is deleted.
        BundleError: a manifest is invalid; nothing is deleted.
    """
    listed = _list(store, _FOLDERS)
    marks = _mark(store, listed, older_s)
    retained = _retained(listed, marks, retention or Retention())
    garbage = [
        entry
        for entry in listed
        if not entry.key.startswith(TRASH)
        and entry.age_s >= older_s
        and _is_garbage(entry, marks, retained)
    ]
    trashed = [entry for entry in listed if entry.key.startswith(TRASH)]
    due = [entry for entry in trashed if entry.age_s >= older_s and not marks.needs(_place(entry))]
    restored: tuple[str, ...] = ()
    retained_keys: list[str] = []
    if not dry_run:
        garbage = _each(garbage, lambda entry: _remove(store, entry, older_s), retained_keys)
        restored, due = _empty_trash(store, older_s, retained_keys)
        restored_keys = {*restored}
        garbage = [entry for entry in garbage if entry.key not in restored_keys]
    partial = store.remove_partial(older_s, dry_run)
    moved = {trash_key(entry.key) for entry in garbage}
    deleted = (*garbage, *(entry for entry in due if entry.key not in moved))
    deleted_keys = {entry.key for entry in deleted}
    kept_blobs = sum(
        entry.key.startswith("blobs/") and entry.key not in deleted_keys for entry in listed
    )
    return Sweep(
        dry_run, deleted, tuple(partial), kept_blobs, bundles=len(marks.bundles), restored=restored,
        retained=tuple(sorted(retained_keys)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Marks:
    """The reachable objects, by key."""

    bundles: frozenset[BlobDigest]
    unpublished: frozenset[BlobDigest]
    """Manifests in the trash that stay for now."""
    named: frozenset[BlobDigest]
    """Bundles with an alias."""
    reached: frozenset[str]
    """Keys of reachable blobs."""
    results: dict[str, str] = field(default_factory=dict)
    """Bundle of each result, by key."""

    def needs(self, key: str) -> bool:
        """Tell whether a blob or a manifest must stay under this key."""
        return key in self.reached or key in map(bundle_key, self.named)


def _list(store: Store, folders: Iterable[str]) -> list[Entry]:
    return [entry for folder in folders for entry in own_entries(store, folder)]


def _mark(store: Store, listed: Sequence[Entry], older_s: float) -> _Marks:
    """Find the objects that manifests, aliases and the listed records reach now."""
    bundles = frozenset(list_bundles(store))
    named = frozenset(alias.bundle for alias in list_aliases(store))
    ages = {entry.key: entry.age_s for entry in store.entries(f"{TRASH}bundles/")}
    unpublished = frozenset(
        digest
        for digest in list_bundles(store, TRASH)
        if digest in named or ages.get(trash_key(bundle_key(digest)), 0.0) < older_s
    )
    reached: set[str] = set()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for data in pool.map(
            lambda digest: read_bundle(store, digest), sorted(bundles | unpublished)
        ):
            reached.update(map(blob_key, bundle_files(data).values()))
    results: dict[str, str] = {}
    keys = [entry.key for entry in listed]
    for key in (key for key in keys if key.startswith(("requests/", "trash/requests/"))):
        request = _fields(store, key)
        reached.update(map(blob_key, _models(request)))
        reached.update(_samples(request))
    for key in (key for key in keys if key.startswith("results/")):
        result = _result(store, key)
        results[key] = _digest(result, "bundle")
        if report := _digest(result, "report"):
            reached.add(blob_key(BlobDigest(report)))
    return _Marks(bundles, unpublished, named, frozenset(reached), results=results)


def _fields(store: Store, key: str) -> Fields:
    """Return the fields of a record; a damaged record has none, because no reader can use it."""
    content = store.read(key)
    try:
        return Fields(parse_object(content.data) if content else {})
    except RecordError:  # damaged
        return Fields({})


def _result(store: Store, key: str) -> Fields:
    content = store.read(key)
    sealed = (unseal(content.data) if content else None) or {}
    try:
        return Fields(parse_object(sealed.get("result") or ""))
    except RecordError:  # damaged
        return Fields({})


def _models(request: Fields) -> Iterator[BlobDigest]:
    """Yield the blobs of every entry's model; a damaged part has none."""
    models = request.entry.get("models")
    for entry in models if isinstance(models, list) else ():
        model = Fields(entry if isinstance(entry, dict) else {})
        external = model.entry.get("external")
        files = Fields(external if isinstance(external, dict) else {})
        for fields, name in ((model, "model"), *((files, name) for name in files.entry)):
            if digest := _digest(fields, name):
                yield BlobDigest(digest)


def _samples(request: Fields) -> Iterator[str]:
    """Yield the keys of a request's samples."""
    listed = request.entry.get("samples")
    sets = listed if isinstance(listed, list) else []
    for digest in (*sets, request.entry.get("settings")):
        if isinstance(digest, str) and is_digest(digest):
            yield f"samples/{digest}.npz"


def _digest(fields: Fields, name: str) -> str:
    try:
        return fields.digest(name)
    except RecordError:  # absent or damaged
        return ""


def _retained(listed: Iterable[Entry], marks: _Marks, retention: Retention) -> frozenset[str]:
    """Return the keys of retained records."""
    entries = list(listed)
    keys = {
        entry.key
        for entry in entries
        if (limit := retention.of(entry.key)) is not None and entry.age_s < limit
    }
    keys |= {key for key, bundle in marks.results.items() if bundle in marks.named}
    keys |= {f"requests/{key.split('/')[1]}.json" for key in keys if key.startswith("results/")}
    return frozenset(keys)


def _is_garbage(entry: Entry, marks: _Marks, retained: Collection[str]) -> bool:
    key = entry.key
    if key.startswith(("blobs/", "samples/")):
        return key not in marks.reached
    if key.startswith("signatures/"):
        return _signed(key) not in marks.bundles | marks.unpublished
    return _is_swept(key) and key not in retained


def _is_swept(key: str) -> bool:
    """Tell whether a sweep may remove the object: neither a manifest nor an alias."""
    return not key.startswith(("bundles/", "aliases/"))


def _signed(key: str) -> str:
    return key.split("/")[1]


def _place(entry: Entry) -> str:
    return entry.key.removeprefix(TRASH)


def _remove(store: Store, entry: Entry, older_s: float) -> bool:
    """Delete an object that is still old, through the trash if it may have references; return success."""
    entry_now = store.stat(entry.key)
    if entry_now is None or entry_now.age_s < older_s:
        return False
    by_trash = entry.key.startswith(("blobs/", "requests/", "samples/"))
    if by_trash and not store.copy(entry.key, trash_key(entry.key)):
        return False
    store.delete(entry.key)
    return True


def _empty_trash(
    store: Store, older_s: float, retained: list[str]
) -> tuple[tuple[str, ...], list[Entry]]:
    """Restore needed objects and delete those past their time in the trash; return both.

    Args:
        retained: receives the keys of objects that cannot be deleted.
    """
    trashed = _list(store, (TRASH,))
    if not trashed:
        return (), []
    marks = _mark(store, _list(store, ("requests/", "results/", f"{TRASH}requests/")), older_s)
    needed = [entry for entry in trashed if marks.needs(_place(entry))]
    missing = [entry for entry in needed if store.stat(_place(entry)) is None]
    restored = _each(missing, lambda entry: store.copy(entry.key, _place(entry)), retained)
    due = [entry for entry in trashed if entry not in needed and entry.age_s >= older_s]

    def drop(entry: Entry) -> bool:
        store.delete(entry.key)
        return True

    return tuple(map(_place, restored)), _each(due, drop, retained)


def _each(entries: list[Entry], act: Callable[[Entry], bool], retained: list[str]) -> list[Entry]:
    """Act on all entries; return those with success. `retained` receives the keys of immutable ones."""

    def attempt(entry: Entry) -> bool:
        try:
            return act(entry)
        except RetainedError as error:
            log.info("%s", error)
            retained.append(entry.key)
            return False

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        done = list(pool.map(attempt, entries))
    return [entry for entry, is_done in zip(entries, done, strict=True) if is_done]

"""Mark and sweep: delete what nothing reaches, and only when asked twice.

Blobs are reached from manifests (every bundle is kept, with or without an alias), from requests (their
models) and from results (their reports). What goes is blobs that nothing reaches, records that nobody has
used for longer than `Retention` says, the objects of finished runs and of the start-up check, signatures of
bundles that are gone, and unfinished uploads.

Looking and deleting are two steps, and somebody may make a reference in between. So what is swept is first
moved to the trash, where readers still find it, and then the references are read once more: what has one
now is put back. Whoever makes a reference looks, after it was written, whether what it names is in its
place (`collage.store.blobs.keep_blobs`, `collage.store.bundles.assign_alias`). Either he looked before the
move, then his reference was there before the second reading; or after it, then he has seen the gap and sent
the content again. What is in the trash for longer than `older_s` is deleted for good; so a sweep that was
killed between the two steps, and a reference whose maker was, find the next sweep in time to put things
back (unless two sweeps with `older_s` of 0 run at once). A manifest in the trash (`collage unpublish`)
keeps its files, and is put back if an alias names it.

A manifest that cannot be read stops the sweep before it begins, for nobody knows what it reaches. Linear in
the number of objects; one request each, besides those of what is deleted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from collage.store.aliases import list_aliases
from collage.store.base import BlobDigest, Entry, Store, is_ours
from collage.store.blobs import blob_key, trash_key, unseal
from collage.store.manifests import bundle_files, bundle_key, list_bundles, read_bundle
from collage.store.records import Fields, RecordError, parse_object

OLDER_S = 24 * 3600.0
DAY_S = 24 * 3600.0
AT_ONCE = 8
TRASH = "trash/"
_FOLDERS = (
    "answers/", "blobs/", "costs/", "kernels/", "probe/", "requests/", "results/", "searches/",
    "shards/", "signatures/", TRASH, "tuning/",
)  # fmt: skip


@dataclass(frozen=True)
class Retention:
    """How long records stay after they were written last, in seconds.

    Attributes:
        requests: with their models; submitting one again counts, and one with a result that is kept stays.
        results: those of a bundle that an alias names stay.
        searches: checkpoints; a search whose checkpoint is gone is made again.
        costs: measurements, and tuning records; what is gone is measured again where it is needed.
        shards: what pods said of their work.
    """

    requests: float = 30 * DAY_S
    results: float = 90 * DAY_S
    searches: float = 90 * DAY_S
    costs: float = 180 * DAY_S
    shards: float = 30 * DAY_S

    def of(self, key: str) -> float | None:
        """Return how long such an object stays, None where this is no record."""
        folders = {"tuning": "costs"}
        folder = key.partition("/")[0]
        return getattr(self, folders.get(folder, folder), None)


@dataclass(frozen=True)
class Sweep:
    """What a sweep deleted, or would delete (`dry_run`); `restored` are keys that it put back."""

    dry_run: bool
    deleted: tuple[Entry, ...]
    partial: tuple[str, ...]
    kept: int
    bundles: int
    restored: tuple[str, ...] = ()

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
    """Delete what nothing reaches and is older than `older_s` seconds.

    Args:
        older_s: younger objects may belong to whoever is at work; also the time in the trash.
        retention: of records; None is the default.

    Raises:
        StoreError: the store fails, or a manifest is damaged; with the latter nothing was deleted.
        BundleError: a manifest is not one; nothing was deleted.
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
    due = [one for one in trashed if one.age_s >= older_s and not marks.wants(_place(one))]
    restored: tuple[str, ...] = ()
    if not dry_run:
        garbage = _each(garbage, lambda entry: _remove(store, entry, older_s))
        restored, due = _empty_trash(store, older_s)
        back = {*restored}
        garbage = [entry for entry in garbage if entry.key not in back]
    partial = store.remove_partial(older_s, dry_run)
    moved = {trash_key(entry.key) for entry in garbage}
    deleted = (*garbage, *(entry for entry in due if entry.key not in moved))
    gone = {entry.key for entry in deleted}
    kept = sum(one.key.startswith("blobs/") and one.key not in gone for one in listed)
    return Sweep(dry_run, deleted, tuple(partial), kept, len(marks.bundles), restored)


@dataclass(frozen=True)
class _Marks:
    """What is reached, by keys."""

    bundles: frozenset[BlobDigest]
    unpublished: frozenset[BlobDigest]
    """Those in the trash that stay for now."""
    named: frozenset[BlobDigest]
    """Bundles that an alias names."""
    reached: frozenset[str]
    """Keys of blobs."""
    results: dict[str, str] = field(default_factory=dict)
    """Bundle of each result, by key."""

    def wants(self, key: str) -> bool:
        """Tell whether a blob or a manifest must be in its place."""
        return key in self.reached or key in map(bundle_key, self.named)


def _list(store: Store, folders: Iterable[str]) -> list[Entry]:
    return [one for folder in folders for one in store.entries(folder) if is_ours(one.key)]


def _mark(store: Store, listed: Sequence[Entry], older_s: float) -> _Marks:
    """Find what is reached now by manifests and aliases, and by the listed records."""
    bundles = frozenset(list_bundles(store))
    named = frozenset(alias.bundle for alias in list_aliases(store))
    ages = {entry.key: entry.age_s for entry in store.entries(f"{TRASH}bundles/")}
    unpublished = frozenset(
        digest
        for digest in list_bundles(store, TRASH)
        if digest in named or ages.get(trash_key(bundle_key(digest)), 0.0) < older_s
    )
    reached: set[str] = set()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for data in pool.map(
            lambda digest: read_bundle(store, digest), sorted(bundles | unpublished)
        ):
            reached.update(map(blob_key, bundle_files(data).values()))
    results: dict[str, str] = {}
    keys = [entry.key for entry in listed]
    for key in (key for key in keys if key.startswith(("requests/", "trash/requests/"))):
        reached.update(map(blob_key, _models(_fields(store, key))))
    for key in (key for key in keys if key.startswith("results/")):
        result = _result(store, key)
        results[key] = _digest(result, "bundle")
        if report := _digest(result, "report"):
            reached.add(blob_key(BlobDigest(report)))
    return _Marks(bundles, unpublished, named, frozenset(reached), results)


def _fields(store: Store, key: str) -> Fields:
    """Return the fields of a record; none where it is damaged, for then nobody can use it."""
    found = store.read(key)
    try:
        return Fields(parse_object(found.data) if found else {})
    except RecordError:
        return Fields({})


def _result(store: Store, key: str) -> Fields:
    found = store.read(key)
    sealed = (unseal(found.data) if found else None) or {}
    try:
        return Fields(parse_object(sealed.get("result") or ""))
    except RecordError:
        return Fields({})


def _models(request: Fields) -> Iterator[BlobDigest]:
    external = request.entry.get("external")
    files = Fields(external if isinstance(external, dict) else {})
    for fields, name in ((request, "model"), *((files, name) for name in files.entry)):
        if found := _digest(fields, name):
            yield BlobDigest(found)


def _digest(fields: Fields, name: str) -> str:
    try:
        return fields.digest(name)
    except RecordError:
        return ""


def _retained(listed: Iterable[Entry], marks: _Marks, retention: Retention) -> frozenset[str]:
    """Return the keys of records that stay."""
    entries = list(listed)
    stays = {
        entry.key
        for entry in entries
        if (limit := retention.of(entry.key)) is not None and entry.age_s < limit
    }
    stays |= {key for key, bundle in marks.results.items() if bundle in marks.named}
    stays |= {f"requests/{key.split('/')[1]}.json" for key in stays if key.startswith("results/")}
    return frozenset(stays)


def _is_garbage(entry: Entry, marks: _Marks, retained: Collection[str]) -> bool:
    key = entry.key
    if key.startswith("blobs/"):
        return key not in marks.reached
    if key.startswith("signatures/"):
        return _signed(key) not in marks.bundles | marks.unpublished
    return _is_swept(key) and key not in retained


def _is_swept(key: str) -> bool:
    """Tell whether a sweep may take such an object: neither manifests nor aliases."""
    return not key.startswith(("bundles/", "aliases/"))


def _signed(key: str) -> str:
    return key.split("/")[1]


def _place(entry: Entry) -> str:
    return entry.key.removeprefix(TRASH)


def _remove(store: Store, entry: Entry, older_s: float) -> bool:
    """Delete an object that is still old, by way of the trash where others may name it; return if it went."""
    now = store.stat(entry.key)
    if now is None or now.age_s < older_s:
        return False
    by_trash = entry.key.startswith(("blobs/", "requests/"))
    if by_trash and not store.copy(entry.key, trash_key(entry.key)):
        return False
    store.delete(entry.key)
    return True


def _empty_trash(store: Store, older_s: float) -> tuple[tuple[str, ...], list[Entry]]:
    """Put back what is reached now, delete what has been there long enough; return both."""
    trashed = _list(store, (TRASH,))
    if not trashed:
        return (), []
    marks = _mark(store, _list(store, ("requests/", "results/", f"{TRASH}requests/")), older_s)
    wanted = [entry for entry in trashed if marks.wants(_place(entry))]
    missing = [entry for entry in wanted if store.stat(_place(entry)) is None]
    restored = _each(missing, lambda entry: store.copy(entry.key, _place(entry)))
    due = [one for one in trashed if one not in wanted and one.age_s >= older_s]

    def drop(entry: Entry) -> bool:
        store.delete(entry.key)
        return True

    return tuple(map(_place, restored)), _each(due, drop)


def _each(entries: list[Entry], act: Callable[[Entry], bool]) -> list[Entry]:
    """Act on all; return those for which it was done."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(act, entries))
    return [entry for entry, one in zip(entries, done, strict=True) if one]

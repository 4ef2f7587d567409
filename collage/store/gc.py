"""Mark and sweep: delete what nothing reaches, and only when asked twice.

Blobs are reached from manifests, and nothing else: every bundle in the store is kept, with or without
an alias. Costs are knowledge, not garbage; aliases and manifests are never touched. What goes is blobs
of publishers that were killed, batches, kernels and answers of finished runs, the start-up check's objects
and unfinished uploads.

Sweeping beside publishers is safe: what may go is listed before the manifests are read, must be older
than `older_s` (a publisher makes the blobs that it relies on young again), and is looked at once more
just before it is deleted. A manifest that cannot be read stops the sweep before it begins, for nobody
knows what it reaches.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from collage.store.base import Entry, Store
from collage.store.blobs import blob_key
from collage.store.bundles import bundle_files, list_bundles, read_bundle

OLDER_S = 24 * 3600.0
AT_ONCE = 8
_SWEPT = ("answers/", "blobs/", "kernels/", "probe/")
_OURS = re.compile(
    r"answers/[0-9a-f]{32}\.json|blobs/[0-9a-f]{2}/[0-9a-f]{64}"
    r"|kernels/[0-9a-f]{64}/[0-9a-f]{64}\.jsonl|probe/[0-9a-f]{32}"
)


@dataclass(frozen=True)
class Sweep:
    """What a sweep deleted, or would delete (`dry_run`)."""

    dry_run: bool
    deleted: tuple[Entry, ...]
    partial: tuple[str, ...]
    kept: int
    bundles: int

    @property
    def bytes_deleted(self) -> int:
        return sum(entry.size_bytes for entry in self.deleted)


def collect_garbage(store: Store, older_s: float = OLDER_S, *, dry_run: bool = True) -> Sweep:
    """Delete objects that no manifest reaches and that are older than `older_s` seconds.

    Raises:
        StoreError: the store fails, or a manifest is damaged; with the latter nothing was deleted.
        BundleError: a manifest is not one; nothing was deleted.
    """
    listed = [entry for prefix in _SWEPT for entry in store.entries(prefix)]
    entries = [entry for entry in listed if _OURS.fullmatch(entry.key)]
    manifests = list(list_bundles(store))
    reached = set(_reached(store, manifests))
    garbage = [entry for entry in entries if entry.key not in reached and entry.age_s >= older_s]
    if not dry_run:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            gone = list(pool.map(lambda entry: _delete(store, entry, older_s), garbage))
        garbage = [entry for entry, deleted in zip(garbage, gone, strict=True) if deleted]
    partial = store.remove_partial(older_s, dry_run)
    kept = len(entries) - len(garbage)
    return Sweep(dry_run, tuple(garbage), tuple(partial), kept, len(manifests))


def _reached(store: Store, manifests: list) -> Iterator[str]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for data in pool.map(lambda digest: read_bundle(store, digest), manifests):
            yield from map(blob_key, bundle_files(data).values())


def _delete(store: Store, entry: Entry, older_s: float) -> bool:
    now = store.stat(entry.key)
    if now is None or now.age_s < older_s:
        return False
    store.delete(entry.key)
    return True

"""Bundles in a store: files first, then the manifest, then the alias.

The manifest is the bundle: it lies under the digest of its own bytes and names every file by its
digest, so that what is fetched is, bit by bit, what was published, and the same bundle published by
many is there once. A bundle without its manifest does not exist, whatever blobs a killed publisher
left (`collage gc` takes those after a day).

Whoever makes a reference writes it first and then looks whether what it names is (still) there; whoever
removes something removes it first and then looks whether a reference has come. Objects of a store are
linearisable, so of any two at once one sees the other: the publisher sends a blob again (`keep_blobs`), the
alias is put back (`point_alias`), the sweep restores what it moved (`collage.store.gc`), the manifest is
published again (`unpublish_bundle`). What is removed lies in the trash for a day, where readers find it; so
one that is killed between its two steps leaves no alias whose bundle cannot be read.

Only the runtime's reader of manifests is used here: fetching needs no compiler and no pydantic.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BundleError, StoreError
from collage.runtime.manifest import read_manifest, verify_files
from collage.runtime.signature import signature_files, verify_folder
from collage.store.aliases import list_aliases, move_alias, read_alias, remove_alias
from collage.store.base import BlobDigest, Store
from collage.store.blobs import (
    blob_key,
    digest_of,
    fetch_blob,
    is_digest,
    keep_blobs,
    put_blob,
    read_checked,
    trash_key,
)
from collage.store.cache import BundleCache
from collage.store.folder import check_output, replace_folder, write_durably
from collage.store.records import parse_object
from collage.store.scratch import scratch_folder

MANIFEST = "manifest.json"
AT_ONCE = 4
_FOLDER = "bundles/"
_SIGNATURES = "signatures/"
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class PublishedBundle:
    """A bundle in a store; `moved` names the aliases that this call moved to it."""

    digest: BlobDigest
    moved: tuple[str, ...]


def publish_bundle(store: Store, folder: Path, aliases: Sequence[str] = ()) -> PublishedBundle:
    """Copy the bundle in `folder` to the store, then let the aliases stand for it.

    Publishing again sends nothing and moves nothing. Interrupted anywhere, the store holds the whole
    bundle or none, and every alias stands for a whole one.

    Raises:
        BundleError: the folder holds no whole bundle.
        StoreError: the store fails.
    """
    verify_files(folder, read_manifest(folder))
    data = (folder / MANIFEST).read_bytes()
    files = bundle_files(data)
    _each(lambda name, digest: _send(store, folder / name, digest), files)
    digest = digest_of(data)
    for file in signature_files(folder):
        store.create(f"{_SIGNATURES}{digest}/{file.name}", file)
    store.create(bundle_key(digest), data)
    keep_blobs(store, {one: folder / name for name, one in files.items()})
    moved = [name for name in aliases if point_alias(store, name, digest)]
    return PublishedBundle(digest, tuple(moved))


def fetch_bundle(
    store: Store,
    name: str,
    output: Path,
    *,
    cache: BundleCache | None = None,
    verify_key: Path | None = None,
) -> BlobDigest:
    """Make `output` the bundle that `name`, an alias or a digest, stands for; return its digest.

    Args:
        cache: where files are looked for first, and kept.
        verify_key: a public key; a bundle that it did not sign is refused and changes nothing.

    Raises:
        BundleError: `output` holds something else, or the signature is missing or wrong.
        StoreError: there is no such bundle, or a file is missing or not what was published.
    """
    check_output(output)
    digest = find_bundle(store, name)
    data = cache.manifest(digest) if cache else None
    if data is None:
        data = read_bundle(store, digest)
    try:
        with scratch_folder(output.parent, f".{output.name}.partial-") as scratch:
            partial = scratch / "new"
            partial.mkdir()
            write_durably(partial / MANIFEST, data)
            _fetch_signatures(store, digest, partial)
            if verify_key:
                verify_folder(partial, verify_key)
            fetch = cache.through(store) if cache else functools.partial(fetch_blob, store)
            _each(lambda name, one: fetch(one, partial / name), bundle_files(data))
            if cache:
                cache.keep_manifest(data)
            replace_folder(partial, output, scratch)
    except OSError as error:
        raise BundleError(
            f"the bundle cannot be written to {output}: {error.strerror or error}. Free space, or "
            "choose another folder with --output"
        ) from error
    return digest


def unpublish_bundle(store: Store, digest: BlobDigest) -> None:
    """Move a bundle's manifest to the trash; it and its files are garbage then, for `collect_garbage`.

    Raises:
        StoreError: there is no such bundle, or an alias stands for it (also when one was moved to it
            meanwhile: then the bundle is put back).
    """
    _require_bundle(store, digest)
    data = read_bundle(store, digest)
    _refuse_alias(store, digest)
    store.create(trash_key(bundle_key(digest)), data)
    store.delete(bundle_key(digest))
    try:
        _refuse_alias(store, digest)
    except StoreError:
        store.create(bundle_key(digest), data)
        raise


def point_alias(
    store: Store, name: str, bundle: BlobDigest, expected: BlobDigest | None = None
) -> bool:
    """Let `name` stand for a published bundle, as `move_alias` does; return whether it was moved now.

    Raises:
        StoreError: the bundle is not there, or was unpublished meanwhile (then the alias is put back);
            or as `move_alias`.
    """
    _require_bundle(store, bundle)
    before = read_alias(store, name)
    moved = move_alias(store, name, bundle, expected)
    try:
        _require_bundle(store, bundle)
    except StoreError:
        if moved and before and before.bundle != bundle:
            move_alias(store, name, before.bundle, bundle)
        elif moved:
            remove_alias(store, name, bundle)
        raise
    return moved


def find_bundle(store: Store, name: str) -> BlobDigest:
    """Return the digest that `name`, an alias or a digest, stands for. StoreError where unknown."""
    if is_digest(name):
        return BlobDigest(name)
    found = read_alias(store, name)
    if found is None:
        raise StoreError(
            f"the store {store.url} has no alias {name!r}; `collage aliases` lists what there is"
        )
    return found.bundle


def read_bundle(store: Store, digest: BlobDigest) -> bytes:
    """Return the manifest with this digest. Raises StoreError when it is absent or damaged."""
    blob_key(digest)
    for key in (bundle_key(digest), trash_key(bundle_key(digest))):
        if (data := read_checked(store, key, digest)) is not None:
            return data
    raise _no_bundle(store, digest)


def list_bundles(store: Store, folder: str = "") -> Iterator[BlobDigest]:
    """Iterate over the digests of all manifests.

    Args:
        folder: `trash/` lists those that are unpublished and still there.

    Raises:
        StoreError: something else lies among them: better no answer than one that misses a bundle.
    """
    for entry in store.entries(f"{folder}{_FOLDER}"):
        name = entry.key.removeprefix(f"{folder}{_FOLDER}").removesuffix(".json")
        if not is_digest(name):
            raise StoreError(
                f"{entry.key} in the store {store.url} is no manifest; move it elsewhere"
            )
        yield BlobDigest(name)


def bundle_files(manifest: bytes) -> dict[str, BlobDigest]:
    """Return name and digest of every file. Raises BundleError for a manifest that is none."""
    try:
        files = parse_object(manifest)["files"]
        for name, digest in files.items():
            if not _FILE.fullmatch(name) or name == MANIFEST or not is_digest(digest):
                raise ValueError(f"the file {name!r}")
        return {name: BlobDigest(digest) for name, digest in sorted(files.items())}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(
            f"a bundle's manifest lacks or garbles {error}; publish it again"
        ) from error


def _require_bundle(store: Store, digest: BlobDigest) -> None:
    """Raise StoreError unless the manifest is where it is published: in the trash it is about to go."""
    blob_key(digest)
    if store.stat(bundle_key(digest)) is None:
        raise _no_bundle(store, digest)


def _no_bundle(store: Store, digest: BlobDigest) -> StoreError:
    return StoreError(f"the store {store.url} has no bundle {digest}; publish it there")


def _refuse_alias(store: Store, digest: BlobDigest) -> None:
    names = [alias.name for alias in list_aliases(store) if alias.bundle == digest]
    if names:
        raise StoreError(
            f"the bundle {digest} in {store.url} stays: {', '.join(names)} stands for it. Move or "
            "remove the alias first (`collage alias`, `collage unalias`)"
        )


def _fetch_signatures(store: Store, digest: BlobDigest, folder: Path) -> None:
    for entry in store.entries(f"{_SIGNATURES}{digest}/"):
        name = entry.key.rpartition("/")[2]
        if name.startswith(f"{MANIFEST}."):
            store.download(entry.key, folder / name)


def _send(store: Store, file: Path, digest: BlobDigest) -> None:
    if put_blob(store, file) != digest:
        raise BundleError(f"{file} changed while it was being published; publish it again")


def bundle_key(digest: BlobDigest) -> str:
    """Where the manifest lies."""
    return f"{_FOLDER}{digest}.json"


def _each(act: Callable[[str, BlobDigest], None], files: dict[str, BlobDigest]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(act, files.keys(), files.values()))  # the first error cancels what waits

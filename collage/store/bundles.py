"""Bundles in a store: files first, then the manifest, then the alias.

The manifest is the bundle: its key is the digest of its own bytes, and it names every file by digest. So a
fetched bundle is bit by bit the published one, and equal bundles of many publishers are stored once. A bundle
without its manifest does not exist, whatever blobs a killed publisher left (`collage gc` removes them after
a day).

A writer of a reference writes it first and checks its target afterwards; a remover removes the target first
and checks for references afterwards. Objects of a store are linearisable, so of two concurrent operations
one sees the other: the publisher sends a blob again (`keep_blobs`), the alias is restored
(`bundle_aliases.assign_alias`), the garbage collector restores moved objects (`collage.store.gc`), the
manifest is published again (`unpublish_bundle`). Removed objects stay in the trash for a day, readable; so a
process killed between its two steps leaves no alias of an unreadable bundle.

Only the runtime's reader of manifests is used here: fetching needs no compiler and no pydantic.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BundleError, StoreError
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.manifest import read_manifest, refuse_unproven, verify_files
from collage.store.alias_counters import Verification
from collage.store.aliases import list_aliases
from collage.store.atomic_folder import check_output, replace_folder, write_durably
from collage.store.base import BlobDigest, Store
from collage.store.blobs import digest_of, fetch_blob, keep_blobs, put_blob, trash_key
from collage.store.bundle_aliases import assign_alias, resolve_alias
from collage.store.bundle_statements import (
    BundleSigning,
    fetch_statements,
    model_refusal,
    publish_statements,
    verify_folder,
)
from collage.store.cache import BundleCache
from collage.store.manifests import bundle_files, bundle_key, read_bundle, require_published
from collage.store.scratch import scratch_folder
from collage.store.statement import sign_bundle

TRANSFERS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class PublishedBundle:
    """A published bundle; `moved` has the aliases that this call moved to it."""

    digest: BlobDigest
    moved: tuple[str, ...]


def publish_bundle(
    store: Store,
    folder: Path,
    aliases: Sequence[str] = (),
    signing: BundleSigning | None = None,
) -> PublishedBundle:
    """Copy the bundle in `folder` to the store, then let the aliases name it.

    A repetition sends nothing and moves nothing. After an interruption at any point the store has the
    whole bundle or none, and every alias names a whole one.

    Args:
        signing: signing of the bundle, in the folder too, and of the aliases' records; None signs
            nothing and sends the folder's statements.

    Raises:
        BundleError: the folder has no whole bundle, or an alias is not of the signed model.
        UnprovenError: the bundle is not proven as fast as the original frameworks.
        StoreError: the store fails.
    """
    manifest = read_manifest(folder)
    verify_files(folder, manifest)
    refuse_unproven(manifest, f"the bundle {folder}")
    data = (folder / MANIFEST).read_bytes()
    if signing:
        sign_bundle(folder, signing.aliases.signer, signing.model)
    files = bundle_files(data)
    _for_each_file(lambda name, digest: _send_file(store, folder / name, digest), files)
    digest = digest_of(data)
    publish_statements(store, digest, folder)
    store.create(bundle_key(digest), data)
    keep_blobs(store, {blob: folder / name for name, blob in files.items()})
    alias_signing = signing.aliases if signing else None
    moved = [name for name in aliases if assign_alias(store, name, digest, signing=alias_signing)]
    return PublishedBundle(digest, tuple(moved))


def fetch_bundle(
    store: Store,
    name: str,
    output: Path,
    *,
    cache: BundleCache | None = None,
    verification: Verification | None = None,
) -> BlobDigest:
    """Copy the bundle that `name`, an alias or a digest, refers to into `output`; return its digest.

    Args:
        cache: local cache of files; None fetches every file from the store.
        verification: trusted keys and known counters; the fetch is refused unless a trusted key signed
            the alias's newest record and the bundle's statement, for the same model. None checks no
            signature.

    Raises:
        BundleError: `output` has other content, or a signature is missing, wrong or old.
        StoreError: the bundle is absent, or a file is absent or damaged.
    """
    check_output(output)
    digest, model = resolve_alias(store, name, verification)
    data = cache.manifest(digest) if cache else None
    if data is None:
        data = read_bundle(store, digest)
    try:
        with scratch_folder(output.parent, f".{output.name}.partial-") as scratch:
            partial = scratch / "new"
            partial.mkdir()
            write_durably(partial / MANIFEST, data)
            fetch_statements(store, digest, partial)
            if verification:
                refusal = model_refusal(model)
                data = verify_folder(partial, name, verification.keys, refusal).manifest
            fetch = cache.through(store) if cache else functools.partial(fetch_blob, store)
            _for_each_file(lambda name, blob: fetch(blob, partial / name), bundle_files(data))
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
        StoreError: the bundle is absent, or an alias names it. If an alias is moved to it meanwhile, the
            bundle is published again.
    """
    require_published(store, digest)
    data = read_bundle(store, digest)
    _refuse_alias(store, digest)
    store.create(trash_key(bundle_key(digest)), data)
    store.delete(bundle_key(digest))
    try:
        _refuse_alias(store, digest)
    except StoreError:
        store.create(bundle_key(digest), data)
        raise


def _refuse_alias(store: Store, digest: BlobDigest) -> None:
    names = [alias.name for alias in list_aliases(store) if alias.bundle == digest]
    if names:
        raise StoreError(
            f"the bundle {digest} in {store.url} stays: {', '.join(names)} stands for it. Move or "
            "remove the alias first (`collage alias`, `collage unalias`)"
        )


def _send_file(store: Store, file: Path, digest: BlobDigest) -> None:
    if put_blob(store, file) != digest:
        raise BundleError(f"{file} changed while it was being published; publish it again")


def _for_each_file(act: Callable[[str, BlobDigest], None], files: dict[str, BlobDigest]) -> None:
    with ThreadPoolExecutor(TRANSFERS_AT_ONCE) as pool:
        list(
            pool.map(act, files.keys(), files.values())
        )  # the first error cancels waiting transfers

"""Manifests of bundles in a store: keys, reading, listing and the file table.

Only the runtime's reader of manifests is used here: fetching needs no compiler and no pydantic.
"""

import re
from collections.abc import Iterator

from collage.errors import BundleError, StoreError
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.json_fields import is_digest
from collage.runtime.manifest import parse_manifest, refuse_unproven
from collage.store.base import BlobDigest, Store, own_entries
from collage.store.blobs import blob_key, read_checked, trash_key
from collage.store.records import parse_object

_BUNDLES = "bundles/"
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def bundle_key(digest: BlobDigest) -> str:
    """Return the key of a bundle's manifest."""
    return f"{_BUNDLES}{digest}.json"


def read_bundle(store: Store, digest: BlobDigest) -> bytes:
    """Return the manifest of a bundle. Raises StoreError if it is absent or damaged."""
    blob_key(digest)
    for key in (bundle_key(digest), trash_key(bundle_key(digest))):
        if (data := read_checked(store, key, digest)) is not None:
            return data
    raise _no_bundle(store, digest)


def require_proven(store: Store, digest: BlobDigest) -> None:
    """Refuse a published bundle that is not proven as fast as the original frameworks.

    Raises:
        UnprovenError: the bundle is not proven.
        BundleError: the manifest is invalid.
        StoreError: the bundle is absent or damaged.
    """
    manifest = parse_manifest(read_bundle(store, digest), f"the manifest of the bundle {digest}")
    refuse_unproven(manifest, f"the bundle {digest}")


def list_bundles(store: Store, folder: str = "") -> Iterator[BlobDigest]:
    """Iterate over the digests of all manifests.

    Args:
        folder: `trash/` for unpublished manifests; "" for published ones.

    Raises:
        StoreError: the store fails.
    """
    for entry in own_entries(store, f"{folder}{_BUNDLES}"):
        yield BlobDigest(entry.key.removeprefix(f"{folder}{_BUNDLES}").removesuffix(".json"))


def bundle_files(manifest: bytes) -> dict[str, BlobDigest]:
    """Return name and digest of every file. Raises BundleError for an invalid manifest."""
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


def require_published(store: Store, digest: BlobDigest) -> None:
    """Raise StoreError unless the manifest is published; one in the trash is about to go."""
    blob_key(digest)
    if store.stat(bundle_key(digest)) is None:
        raise _no_bundle(store, digest)


def _no_bundle(store: Store, digest: BlobDigest) -> StoreError:
    return StoreError(f"the store {store.url} has no bundle {digest}; publish it there")

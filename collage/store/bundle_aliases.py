"""Aliases of published bundles: assignment with the check of both ends, and resolution to a digest."""

import logging

from collage.errors import BundleError, StoreError
from collage.runtime.json_fields import is_digest
from collage.store.alias_counters import Verification, check_newest
from collage.store.aliases import AliasRecord, AliasSigning, move_alias, read_record, remove_alias
from collage.store.base import BlobDigest, Store
from collage.store.bundle_statements import model_for_alias
from collage.store.manifests import require_published

log = logging.getLogger(__name__)


def assign_alias(
    store: Store,
    name: str,
    bundle: BlobDigest,
    expected: BlobDigest | None = None,
    *,
    signing: AliasSigning | None = None,
) -> bool:
    """Let an alias name a published bundle; return whether this call wrote the record.

    Args:
        expected: required present bundle of the alias; None accepts every one.
        signing: keys for the record, signed after a check of the bundle's statement; None signs nothing.

    Raises:
        BundleError: with `signing`, no trusted key signed the bundle for a model of the alias.
        StoreError: the bundle is absent, or was unpublished meanwhile (the alias is restored then); the
            alias names another bundle than `expected`; or the store fails.
    """
    require_published(store, bundle)
    model = model_for_alias(store, name, bundle, signing.keys) if signing else ""
    before = _restorable_record(store, name, signing)
    moved = move_alias(store, name, bundle, expected, signing=signing, model=model)
    try:
        require_published(store, bundle)
    except StoreError:
        if moved:
            _restore(store, before, name, bundle, signing=signing)
        raise
    return moved


def find_bundle(store: Store, name: str, verification: Verification | None = None) -> BlobDigest:
    """Return the digest of the bundle that `name`, an alias or a digest, refers to.

    Args:
        verification: trusted keys and known counters; an unsigned or older record is refused. None
            accepts every record.

    Raises:
        BundleError: the alias's record is refused.
        StoreError: the alias is absent.
    """
    return resolve_alias(store, name, verification)[0]


def resolve_alias(
    store: Store, name: str, verification: Verification | None
) -> tuple[BlobDigest, str]:
    """Return the bundle's digest, and the model of a verified alias ("" accepts every model)."""
    if is_digest(name):
        return BlobDigest(name), ""
    record = read_record(store, name, verification.keys if verification else None)
    if record and verification:
        check_newest(verification.counters_dir, store.url, record)
    if record is None or record.bundle is None:
        raise StoreError(
            f"the store {store.url} has no alias {name!r}; `collage aliases` lists what there is"
        )
    return record.bundle, record.model if verification else ""


def _restore(
    store: Store,
    before: AliasRecord | None,
    name: str,
    bundle: BlobDigest,
    *,
    signing: AliasSigning | None,
) -> None:
    """Move an alias of an unpublished bundle back to its former bundle."""
    if before and before.bundle and before.bundle != bundle:
        model = before.model
        move_alias(store, name, before.bundle, bundle, signing=signing, model=model)
    else:
        remove_alias(store, name, bundle, signing=signing)


def _restorable_record(store: Store, name: str, signing: AliasSigning | None) -> AliasRecord | None:
    """Return the record for a restore; with `signing`, only one that a trusted key signed."""
    try:
        return read_record(store, name, signing.keys if signing else None)
    except BundleError as error:
        log.debug("the record of the alias %s is not restored: %s", name, error)
        return None

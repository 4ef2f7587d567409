"""Bundles in a store: files first, then the manifest, then the alias.

The manifest is the bundle: it lies under the digest of its own bytes and names every file by its
digest, so that what is fetched is, bit by bit, what was published, and the same bundle published by
many is there once. A bundle without its manifest does not exist, whatever blobs a killed publisher
left (`collage gc` takes those after a day).

Whoever makes a reference writes it first and then looks whether what it names is (still) there; whoever
removes something removes it first and then looks whether a reference has come. Objects of a store are
linearisable, so of any two at once one sees the other: the publisher sends a blob again (`keep_blobs`), the
alias is put back (`assign_alias`), the sweep restores what it moved (`collage.store.gc`), the manifest is
published again (`unpublish_bundle`). What is removed lies in the trash for a day, where readers find it; so
one that is killed between its two steps leaves no alias whose bundle cannot be read.

Only the runtime's reader of manifests is used here: fetching needs no compiler and no pydantic.
"""

import functools
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BundleError, StoreError
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.envelope import MAX_BYTES
from collage.runtime.json_fields import is_digest
from collage.runtime.manifest import (
    parse_manifest,
    read_manifest,
    refuse_unproven,
    verify_files,
)
from collage.runtime.signature import (
    MAX_STATEMENTS,
    Statement,
    is_alias_of,
    is_statement,
    verified_statement,
)
from collage.runtime.trust import TrustedKeys
from collage.store.alias_counters import Verification, check_newest
from collage.store.aliases import (
    AliasRecord,
    AliasSigning,
    list_aliases,
    move_alias,
    read_record,
    remove_alias,
)
from collage.store.atomic_folder import check_output, replace_folder, write_durably
from collage.store.base import BlobDigest, Store
from collage.store.blobs import (
    blob_key,
    digest_of,
    fetch_blob,
    keep_blobs,
    put_blob,
    read_checked,
    trash_key,
)
from collage.store.cache import BundleCache
from collage.store.records import parse_object
from collage.store.scratch import scratch_folder
from collage.store.statement import SignedModel, sign_bundle, signed_statement

AT_ONCE = 4
_FOLDER = "bundles/"
_SIGNATURES = "signatures/"
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class PublishedBundle:
    """A bundle in a store; `moved` names the aliases that this call moved to it."""

    digest: BlobDigest
    moved: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BundleSigning:
    """How a publisher signs: the moves of aliases, and the bundle's statement as this model's."""

    aliases: AliasSigning
    model: SignedModel


def publish_bundle(
    store: Store,
    folder: Path,
    aliases: Sequence[str] = (),
    signing: BundleSigning | None = None,
) -> PublishedBundle:
    """Copy the bundle in `folder` to the store, then let the aliases stand for it.

    Publishing again sends nothing and moves nothing. Interrupted anywhere, the store holds the whole
    bundle or none, and every alias stands for a whole one.

    Args:
        signing: sign the bundle, in the folder too, and the aliases' records; None signs nothing, and
            sends the statements that are there.

    Raises:
        BundleError: the folder holds no whole bundle, or an alias is not one of the signed model's.
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
    _each(lambda name, digest: _send(store, folder / name, digest), files)
    digest = digest_of(data)
    for file in sorted(filter(lambda one: is_statement(one.name), folder.iterdir())):
        store.create(f"{_SIGNATURES}{digest}/{file.name}", file)
    store.create(bundle_key(digest), data)
    keep_blobs(store, {one: folder / name for name, one in files.items()})
    by = signing.aliases if signing else None
    moved = [name for name in aliases if assign_alias(store, name, digest, signing=by)]
    return PublishedBundle(digest, tuple(moved))


def assign_alias(
    store: Store,
    name: str,
    bundle: BlobDigest,
    expected: BlobDigest | None = None,
    *,
    signing: AliasSigning | None = None,
) -> bool:
    """Let an alias stand for a published bundle; return whether this call wrote it so.

    Args:
        expected: move only from this bundle; None moves from whatever it is now.
        signing: sign the record, after the bundle's own statement was verified for this alias.

    Raises:
        BundleError: `signing`, and no trusted key signed the bundle for a model that the name is of.
        StoreError: the bundle is not there, or was unpublished meanwhile (then the alias is put back);
            the alias stands for another bundle than `expected`, or the store fails.
    """
    _require_bundle(store, bundle)
    model = _model_for(store, name, bundle, signing) if signing else ""
    before = _standing(store, name, signing)
    moved = move_alias(store, name, bundle, expected, signing=signing, model=model)
    try:
        _require_bundle(store, bundle)
    except StoreError:
        if moved:
            _put_back(store, before, name, bundle, signing)
        raise
    return moved


def _put_back(
    store: Store,
    before: AliasRecord | None,
    name: str,
    bundle: BlobDigest,
    signing: AliasSigning | None,
) -> None:
    """Let an alias that was just moved to an unpublished bundle stand for what it stood for before."""
    if before and before.bundle and before.bundle != bundle:
        model = before.model
        move_alias(store, name, before.bundle, bundle, signing=signing, model=model)
    else:
        remove_alias(store, name, bundle, signing=signing)


def _model_for(store: Store, name: str, bundle: BlobDigest, signing: AliasSigning) -> str:
    def refusal(one: Statement) -> str:
        known = is_alias_of(name, one.model)
        return "" if known else f"it is of the model {one.model!r}, and the alias is {name!r}"

    return _published_statement(store, bundle, signing.keys, refusal).model


def _standing(store: Store, name: str, signing: AliasSigning | None) -> AliasRecord | None:
    """What may be put back: with `signing`, nothing that no trusted key signed."""
    try:
        return read_record(store, name, signing.keys if signing else None)
    except BundleError:
        return None


def sign_published(store: Store, bundle: BlobDigest, signing: BundleSigning) -> None:
    """Add a statement to a bundle in a store, of which a trusted key has said the same model and request.

    Raises:
        BundleError: no trusted key signed it as this model and, where one is named, for this request.
        StoreError: there is no such bundle, or the store fails.
    """
    model, by = signing.model, signing.aliases

    def refusal(one: Statement) -> str:
        if one.model != model.name:
            return f"it is of the model {one.model!r}, not of {model.name!r}"
        other = model.request and one.request != model.request
        return (
            f"it answers the request {one.request[:12]!r}, not {model.request[:12]}"
            if other
            else ""
        )

    found = _published_statement(store, bundle, by.keys, refusal)
    name, content = signed_statement(found.manifest, by.signer, model)
    store.create(f"{_SIGNATURES}{bundle}/{name}", content)


def _published_statement(
    store: Store, bundle: BlobDigest, keys: TrustedKeys, refusal: Callable[[Statement], str]
) -> Statement:
    with tempfile.TemporaryDirectory(prefix="collage-statements-") as scratch:
        folder = Path(scratch)
        (folder / MANIFEST).write_bytes(read_bundle(store, bundle))
        _fetch_statements(store, bundle, folder)
        return _verified(folder, f"the bundle {bundle}", keys, refusal)


def fetch_bundle(
    store: Store,
    name: str,
    output: Path,
    *,
    cache: BundleCache | None = None,
    verification: Verification | None = None,
) -> BlobDigest:
    """Make `output` the bundle that `name`, an alias or a digest, stands for; return its digest.

    Args:
        cache: where files are looked for first, and kept.
        verification: refuse, and change nothing, unless a trusted key signed the alias's newest record
            and the bundle's statement, both for the same model.

    Raises:
        BundleError: `output` holds something else, or a signature is missing, wrong or old.
        StoreError: there is no such bundle, or a file is missing or not what was published.
    """
    check_output(output)
    digest, model = _found(store, name, verification)
    data = cache.manifest(digest) if cache else None
    if data is None:
        data = read_bundle(store, digest)
    try:
        with scratch_folder(output.parent, f".{output.name}.partial-") as scratch:
            partial = scratch / "new"
            partial.mkdir()
            write_durably(partial / MANIFEST, data)
            _fetch_statements(store, digest, partial)
            if verification:
                data = _verified(partial, name, verification.keys, _other_than(model)).manifest
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


def find_bundle(store: Store, name: str, verification: Verification | None = None) -> BlobDigest:
    """Return the digest that `name`, an alias or a digest, stands for.

    Args:
        verification: refuse an alias whose record no trusted key signed, or that is older than one that
            was seen before.

    Raises:
        BundleError: the alias's record is refused.
        StoreError: there is no such alias.
    """
    return _found(store, name, verification)[0]


def _found(store: Store, name: str, verification: Verification | None) -> tuple[BlobDigest, str]:
    """The bundle's digest, and the model that a verified alias is of ("": whatever it is)."""
    if is_digest(name):
        return BlobDigest(name), ""
    found = read_record(store, name, verification.keys if verification else None)
    if found and verification:
        check_newest(verification.seen, store.url, found)
    if found is None or found.bundle is None:
        raise StoreError(
            f"the store {store.url} has no alias {name!r}; `collage aliases` lists what there is"
        )
    return found.bundle, found.model if verification else ""


def _other_than(model: str) -> Callable[[Statement], str]:
    def refusal(one: Statement) -> str:
        known = model in ("", one.model)
        return "" if known else f"it is of the model {one.model!r}, and the alias of {model!r}"

    return refusal


def read_bundle(store: Store, digest: BlobDigest) -> bytes:
    """Return the manifest with this digest. Raises StoreError when it is absent or damaged."""
    blob_key(digest)
    for key in (bundle_key(digest), trash_key(bundle_key(digest))):
        if (data := read_checked(store, key, digest)) is not None:
            return data
    raise _no_bundle(store, digest)


def require_proven(store: Store, digest: BlobDigest) -> None:
    """Refuse a published bundle that is not proven as fast as the original frameworks.

    Raises:
        UnprovenError: it is not.
        BundleError: its manifest cannot be understood.
        StoreError: there is no such bundle, or it is damaged.
    """
    manifest = parse_manifest(read_bundle(store, digest), f"the manifest of the bundle {digest}")
    refuse_unproven(manifest, f"the bundle {digest}")


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


def _fetch_statements(store: Store, digest: BlobDigest, folder: Path) -> None:
    """Only names and sizes that a statement can have: anyone who writes to the store can add others."""
    found = {
        entry.key.rpartition("/")[2]: entry.key
        for entry in store.entries(f"{_SIGNATURES}{digest}/")
        if entry.size_bytes <= MAX_BYTES
    }
    for name in sorted(filter(is_statement, found))[:MAX_STATEMENTS]:
        store.download(found[name], folder / name)


def _verified(
    folder: Path, what: str, keys: TrustedKeys, refusal: Callable[[Statement], str]
) -> Statement:
    names = [file.name for file in folder.iterdir()]
    try:
        return verified_statement(lambda name: (folder / name).read_bytes(), names, keys, refusal)
    except BundleError as error:
        raise BundleError(f"{what}: {error}") from None


def _send(store: Store, file: Path, digest: BlobDigest) -> None:
    if put_blob(store, file) != digest:
        raise BundleError(f"{file} changed while it was being published; publish it again")


def bundle_key(digest: BlobDigest) -> str:
    """Where the manifest lies."""
    return f"{_FOLDER}{digest}.json"


def _each(act: Callable[[str, BlobDigest], None], files: dict[str, BlobDigest]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(act, files.keys(), files.values()))  # the first error cancels what waits

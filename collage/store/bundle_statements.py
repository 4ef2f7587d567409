"""Signed statements of bundles in a store: fetch, verification and addition.

Statements lie beside the manifest, under `signatures/`. Everybody with the right to write to the store can
add objects there, so only names and sizes of possible statements are fetched, and only statements of trusted
keys count.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collage.errors import BundleError
from collage.runtime.bundle_folder import MANIFEST
from collage.runtime.envelope import MAX_ENVELOPE_BYTES
from collage.runtime.signature import (
    MAX_STATEMENTS,
    Statement,
    is_alias_of,
    is_statement,
    verified_statement,
)
from collage.runtime.trust import TrustedKeys
from collage.store.aliases import AliasSigning
from collage.store.base import BlobDigest, Store
from collage.store.manifests import read_bundle
from collage.store.statement import SignedModel, signed_statement

_SIGNATURES = "signatures/"

Refusal = Callable[[Statement], str]
"""Reason against a statement; "" accepts it."""


@dataclass(frozen=True, slots=True)
class BundleSigning:
    """Signing of a publisher: the keys for aliases, and the model of the bundle's statement."""

    aliases: AliasSigning
    model: SignedModel


def publish_statements(store: Store, bundle: BlobDigest, folder: Path) -> None:
    """Copy the statements in a bundle's folder to the store. Raises StoreError."""
    for file in sorted(folder.iterdir()):
        if is_statement(file.name):
            store.create(f"{_SIGNATURES}{bundle}/{file.name}", file)


def sign_published(store: Store, bundle: BlobDigest, signing: BundleSigning) -> None:
    """Add a statement to a bundle with a trusted statement of the same model and request.

    Raises:
        BundleError: no trusted key signed it as this model and, if the model has one, for this request.
        StoreError: the bundle is absent, or the store fails.
    """
    model, alias_signing = signing.model, signing.aliases

    def refusal(statement: Statement) -> str:
        if statement.model != model.name:
            return f"it is of the model {statement.model!r}, not of {model.name!r}"
        if model.request and statement.request != model.request:
            return f"it answers the request {statement.request[:12]!r}, not {model.request[:12]}"
        return ""

    trusted = _published_statement(store, bundle, alias_signing.keys, refusal)
    name, content = signed_statement(trusted.manifest, alias_signing.signer, model)
    store.create(f"{_SIGNATURES}{bundle}/{name}", content)


def model_for_alias(store: Store, name: str, bundle: BlobDigest, keys: TrustedKeys) -> str:
    """Return the model of a bundle's trusted statement. Raises BundleError unless the alias is of it."""

    def refusal(statement: Statement) -> str:
        if is_alias_of(name, statement.model):
            return ""
        return f"it is of the model {statement.model!r}, and the alias is {name!r}"

    return _published_statement(store, bundle, keys, refusal).model


def model_refusal(model: str) -> Refusal:
    """Return the refusal of statements for another model than the alias's; "" accepts every model."""

    def refusal(statement: Statement) -> str:
        if model in ("", statement.model):
            return ""
        return f"it is of the model {statement.model!r}, and the alias of {model!r}"

    return refusal


def fetch_statements(store: Store, bundle: BlobDigest, folder: Path) -> None:
    """Copy the bundle's statements to a folder, within the limits of number and size."""
    keys = {
        entry.key.rpartition("/")[2]: entry.key
        for entry in store.entries(f"{_SIGNATURES}{bundle}/")
        if entry.size_bytes <= MAX_ENVELOPE_BYTES
    }
    for name in sorted(filter(is_statement, keys))[:MAX_STATEMENTS]:
        store.download(keys[name], folder / name)


def verify_folder(folder: Path, subject: str, keys: TrustedKeys, refusal: Refusal) -> Statement:
    """Return the trusted statement of a bundle's folder. Raises BundleError, which begins with `subject`."""
    names = [file.name for file in folder.iterdir()]
    try:
        return verified_statement(lambda name: (folder / name).read_bytes(), names, keys, refusal)
    except BundleError as error:
        raise BundleError(f"{subject}: {error}") from None


def _published_statement(
    store: Store, bundle: BlobDigest, keys: TrustedKeys, refusal: Refusal
) -> Statement:
    with tempfile.TemporaryDirectory(prefix="collage-statements-") as scratch:
        folder = Path(scratch)
        (folder / MANIFEST).write_bytes(read_bundle(store, bundle))
        fetch_statements(store, bundle, folder)
        return verify_folder(folder, f"the bundle {bundle}", keys, refusal)

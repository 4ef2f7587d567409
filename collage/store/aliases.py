"""Aliases: names of bundles (`ocr/production`), moved by compare-and-swap.

An alias is one small sealed record: the bundle's digest, the previous one (for a roll-back), a counter that
grows with every move, a roll-back included, and a random token. The token makes every record unique: after a
lost answer the writer reads the record back and knows its outcome. A removed alias is a record without a
bundle: some services have no conditional delete, and all of them have a conditional write.

With a key the record is signed. It contains its alias and the model of its bundles, so it is invalid under
another name. Readers store the highest known counter (`collage.store.alias_counters`), so an old record is
invalid too. The counter is at least the time in seconds: after a deletion the next counter is still above
all earlier ones. A new record continues the counter of a trusted record only; otherwise any writer to the
store could exhaust the counter.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from collage.errors import BundleError, StoreError
from collage.runtime.envelope import (
    ALIAS,
    EnvelopeError,
    Signer,
    open_envelope,
    unverified_payload,
)
from collage.runtime.json_fields import is_digest
from collage.runtime.signature import is_alias_of
from collage.runtime.trust import TrustedKeys, only_key, trusted_keys
from collage.store.base import BlobDigest, Store, Version, own_entries
from collage.store.blobs import READS, seal, unseal
from collage.store.records import parse_object

log = logging.getLogger(__name__)

SWAP_ATTEMPTS = 100
"""Attempts of a move; each failed one means a successful move of another writer."""
MAX_COUNTER = 1 << 53
"""Largest exact integer of JSON numbers: one move a second for 285 million years."""

_FOLDER, _SUFFIX = "aliases/", ".json"
_MAX_PART = 100


@dataclass(frozen=True, slots=True)
class Alias:
    """The present and the previous bundle of a name."""

    name: str
    bundle: BlobDigest
    previous: BlobDigest | None


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """The record of an alias's last move.

    Attributes:
        bundle: present bundle; None for a removed alias.
        previous: bundle before the last move, or None.
        counter: number that grows with every move.
        model: model of the alias's bundles; only the signature proves it.
        signers: ids of the trusted keys of its signatures; empty without verification.
    """

    name: str
    bundle: BlobDigest | None
    previous: BlobDigest | None
    counter: int
    model: str
    signers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AliasSigning:
    """Signing of moves: the signer, and the trusted keys whose records continue the counter."""

    signer: Signer
    keys: TrustedKeys

    @classmethod
    def configured(cls, key: Path | None, trusted: Sequence[Path]) -> "AliasSigning | None":
        """Return the signing with the key in a file, None without one. Raises OptionError for a bad key."""
        if key is None:
            return None
        return cls.by(Signer(key), trusted_keys(trusted) if trusted else None)

    @classmethod
    def by(cls, signer: Signer, keys: TrustedKeys | None = None) -> "AliasSigning":
        """Return the signing with a key, trusted too unless `keys` restrict or revoke it."""
        own = only_key(signer.public)
        return cls(signer, own.joined(keys) if keys else own)


def read_alias(store: Store, name: str) -> Alias | None:
    """Return the alias, or None if it is absent. Raises StoreError if its record is damaged."""
    record = read_record(store, name)
    if record is None or record.bundle is None:
        return None
    return Alias(name, record.bundle, record.previous)


def read_record(store: Store, name: str, keys: TrustedKeys | None = None) -> AliasRecord | None:
    """Return the record of the alias's last move, a removal included, or None without one.

    Args:
        keys: trusted keys; a record without their signature is refused. None accepts every record.

    Raises:
        StoreError: the record is damaged.
        BundleError: no trusted key signed it, or it is the record of another alias.
    """
    sealed, _ = _sealed(store, name)
    return _opened(store, name, sealed, keys) if sealed else None


def list_aliases(store: Store) -> Iterator[Alias]:
    """Iterate over all aliases, by name; signatures are not verified."""
    names = [
        entry.key.removeprefix(_FOLDER).removesuffix(_SUFFIX)
        for entry in own_entries(store, _FOLDER)
    ]
    for name in sorted(names):
        if alias := read_alias(store, name):
            yield alias


def move_alias(
    store: Store,
    name: str,
    bundle: BlobDigest,
    expected: BlobDigest | None = None,
    *,
    signing: AliasSigning | None = None,
    model: str = "",
) -> bool:
    """Move `name` to `bundle`; return whether this call wrote the record.

    Args:
        expected: required present bundle of the alias; None accepts every one.
        signing: keys for the record; a record of the bundle without this key's signature is written
            again. None signs nothing.
        model: model in the bundle's statement; required with `signing`.

    Raises:
        BundleError: with `signing`, the name is not an alias of the model.
        StoreError: the alias names another bundle than `expected`, or the store fails.
    """
    if signing and not is_alias_of(name, model):
        raise BundleError(
            f"the alias {name!r} cannot stand for a bundle of the model {model!r}: name it "
            f"{model}/..., or publish the bundle with --model {name.partition('/')[0]}"
        )
    return _swap(store, name, bundle, expected, signing=signing, model=model)


def remove_alias(
    store: Store,
    name: str,
    expected: BlobDigest | None = None,
    *,
    signing: AliasSigning | None = None,
) -> bool:
    """Remove the alias `name`; return whether this call removed it.

    Args:
        expected: required present bundle of the alias; None accepts every one.
        signing: keys for the record of the removal, so that readers refuse earlier records; None signs
            nothing.

    Raises:
        StoreError: the alias names another bundle than `expected`, or the store fails.
    """
    return _swap(store, name, None, expected, signing=signing, model="")


def slug(text: str) -> str:
    """Return `text` as one part of a store's key; changed text gets a digest of the original.

    >>> slug("resnet18"), slug("my model")
    ('resnet18', 'my-model-76eeb0')
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).lstrip(".")[:_MAX_PART]
    if safe == text:
        return text
    return f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _swap(
    store: Store,
    name: str,
    bundle: BlobDigest | None,
    expected: BlobDigest | None,
    *,
    signing: AliasSigning | None,
    model: str,
) -> bool:
    for _ in range(SWAP_ATTEMPTS):
        sealed, version = _sealed(store, name)
        record = _opened(store, name, sealed, None) if sealed else None
        proven = _proven(store, name, sealed, signing) if signing else record
        stands_for = record.bundle if record else None
        signed = signing is None or (proven and signing.signer.key_id in proven.signers)
        if stands_for == bundle and (signed or bundle is None):
            return False
        if expected and stands_for != expected:
            stands = f"stands for {stands_for}" if stands_for else "does not exist"
            raise StoreError(
                f"the alias {name!r} in {store.url} {stands}, not for {expected}: somebody moved it. "
                "Look at what it is now, then decide again"
            )
        fields = {
            "alias": name,
            "bundle": bundle,
            "previous": stands_for,
            "model": model or (proven.model if proven else "") or name.partition("/")[0],
            "counter": max(proven.counter + 1 if proven else 1, int(time.time())),
            "token": uuid4().hex,
        }
        if store.swap(_key(name), _written(fields, signing), version):
            return True
    raise StoreError(
        f"the alias {name!r} in {store.url} was moved by others in {SWAP_ATTEMPTS} attempts; find out who"
    )


def _proven(
    store: Store, name: str, sealed: dict[str, str | None] | None, signing: AliasSigning
) -> AliasRecord | None:
    """Return the record if a trusted key signed it, else None."""
    try:
        return _opened(store, name, sealed, signing.keys) if sealed else None
    except BundleError as error:
        log.debug("the record of the alias %s is not continued: %s", name, error)
        return None


def _written(fields: dict[str, str | int | None], signing: AliasSigning | None) -> bytes:
    text = json.dumps(fields, sort_keys=True)
    if signing is None:
        return seal({"record": text})
    return seal({"envelope": signing.signer.sign(ALIAS, text.encode()).decode()})


def _sealed(store: Store, name: str) -> tuple[dict[str, str | None] | None, Version | None]:
    for _ in range(READS):
        content = store.read(_key(name))
        if content is None:
            return None, None
        if sealed := unseal(content.data):
            return sealed, content.version
    raise _damaged(store, name)


def _opened(
    store: Store, name: str, sealed: dict[str, str | None], keys: TrustedKeys | None
) -> AliasRecord:
    envelope, text = sealed.get("envelope"), sealed.get("record")
    signers: tuple[str, ...] = ()
    try:
        if keys is not None:
            if not isinstance(envelope, str):
                raise EnvelopeError("it is not signed. Move it with --sign-key")
            payload, signers = open_envelope(envelope.encode(), ALIAS, keys)
        elif isinstance(envelope, str):
            payload = unverified_payload(envelope.encode())
        else:
            payload = (text or "").encode()
        record = _parsed(payload, name, signers)
        if keys is not None and not (
            keys.may_sign(signers, record.model) and is_alias_of(name, record.model)
        ):
            raise EnvelopeError(f"it is of the model {record.model!r}, or its key may not sign it")
    except EnvelopeError as error:
        if keys is None:
            raise _damaged(store, name) from error
        raise BundleError(
            f"the alias {name!r} in {store.url} is refused: {error}. Find out who wrote it"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(store, name) from error
    return record


def _parsed(payload: bytes, name: str, signers: tuple[str, ...]) -> AliasRecord:
    fields = parse_object(payload)
    alias, model, counter = fields["alias"], fields["model"], fields["counter"]
    if alias != name:
        raise EnvelopeError(f"it is the record of the alias {alias!r}")
    if not isinstance(counter, int) or not 0 < counter < MAX_COUNTER or not isinstance(model, str):
        raise ValueError("counter or model")
    bundle, previous = (
        None if fields[key] is None else _digest(fields[key]) for key in ("bundle", "previous")
    )
    return AliasRecord(name, bundle, previous, counter, model=model, signers=signers)


def _digest(text: str) -> BlobDigest:
    if not is_digest(text):
        raise ValueError("digest")
    return BlobDigest(text)


def _damaged(store: Store, name: str) -> StoreError:
    return StoreError(
        f"{_key(name)} in the store {store.url} was changed or damaged. Delete it there and move the "
        "alias again (`collage alias`)"
    )


def _key(name: str) -> str:
    return f"{_FOLDER}{name}{_SUFFIX}"

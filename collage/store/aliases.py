"""Names that stand for bundles (`ocr/production`), moved by compare-and-swap.

An alias is one small sealed record: the bundle's digest, the one before it (so that a roll-back needs
no archaeology), a counter that grows with every move, a roll-back too, and a random token, which makes
every move's record unlike all others: whoever wonders whether a move took place reads the record and
knows. A removed alias is a record without a bundle, not an absent one: not every service deletes under a
condition, and all of them swap.

With a key the record is signed: it names its alias and the model whose bundles it may stand for, so
that it proves nothing under another name, and readers remember the highest counter that they have
seen (`collage.store.alias_counters`), so that an old record proves nothing either. The counter is
at least the time in seconds: where a record was deleted, the next one's is still above all that
were seen. Before a record is signed, the counter of the one before it counts only if that is signed
by a trusted key: otherwise anyone who writes to the store could drive it to its end.
"""

import hashlib
import json
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
from collage.store.base import BlobDigest, Store, Version
from collage.store.blobs import READS, seal, unseal
from collage.store.records import parse_object

ATTEMPTS = 100
"""Of a move; each one that fails means that another writer's move succeeded."""
MAX_COUNTER = 1 << 53
"""What JSON's numbers hold exactly: one move a second for 285 million years."""

_FOLDER, _SUFFIX = "aliases/", ".json"
_MAX_PART = 100


@dataclass(frozen=True, slots=True)
class Alias:
    """What a name stands for, and stood for before its last move."""

    name: str
    bundle: BlobDigest
    previous: BlobDigest | None


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """The record of an alias's last move.

    Attributes:
        bundle: None where the alias was removed.
        previous: what it stood for before.
        counter: grows with every move.
        model: whose bundles the alias may stand for; proven by the signature alone.
        signers: ids of the trusted keys that signed it; none where none was asked for.
    """

    name: str
    bundle: BlobDigest | None
    previous: BlobDigest | None
    counter: int
    model: str
    signers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AliasSigning:
    """How moves are signed: with whose key, and whose records their counters continue."""

    signer: Signer
    keys: TrustedKeys

    @classmethod
    def configured(cls, key: Path | None, trusted: Sequence[Path]) -> "AliasSigning | None":
        """Sign with the key in this file; None without one. Raises OptionError for a bad key."""
        if key is None:
            return None
        return cls.by(Signer(key), trusted_keys(trusted) if trusted else None)

    @classmethod
    def by(cls, signer: Signer, keys: TrustedKeys | None = None) -> "AliasSigning":
        """Sign with a key that is trusted too, unless `keys` restrict or revoke it."""
        own = only_key(signer.public)
        return cls(signer, own.joined(keys) if keys else own)


def read_alias(store: Store, name: str) -> Alias | None:
    """Return the alias, or None where there is none. Raises StoreError where it was damaged."""
    record = read_record(store, name)
    if record is None or record.bundle is None:
        return None
    return Alias(name, record.bundle, record.previous)


def read_record(store: Store, name: str, keys: TrustedKeys | None = None) -> AliasRecord | None:
    """Return the record of the alias's last move, a removal too, or None where there was none.

    Args:
        keys: refuse a record that none of them signed; None takes every record.

    Raises:
        StoreError: the record was damaged.
        BundleError: it is not signed by a trusted key, or as another alias.
    """
    sealed, _ = _sealed(store, name)
    return _opened(store, name, sealed, keys) if sealed else None


def list_aliases(store: Store) -> Iterator[Alias]:
    """Iterate over all aliases, by name; signatures are not verified."""
    names = [
        entry.key.removeprefix(_FOLDER).removesuffix(_SUFFIX) for entry in store.entries(_FOLDER)
    ]
    for name in sorted(names):
        if found := read_alias(store, name):
            yield found


def move_alias(
    store: Store,
    name: str,
    bundle: BlobDigest,
    expected: BlobDigest | None = None,
    *,
    signing: AliasSigning | None = None,
    model: str = "",
) -> bool:
    """Let `name` stand for `bundle`; return whether this call is the one that wrote it so.

    Args:
        expected: move only from this bundle; None moves from whatever it is now.
        signing: sign the record. One that stands for the bundle already and that this key has not
            signed is written anew.
        model: that the bundle's statement names; needed with `signing`.

    Raises:
        BundleError: the record is to be signed, and the name is not one of the model's.
        StoreError: the alias stands for another bundle than `expected`, or the store fails.
    """
    if signing and not is_alias_of(name, model):
        raise BundleError(
            f"the alias {name!r} cannot stand for a bundle of the model {model!r}: name it "
            f"{model}/..., or publish the bundle with --model {name.partition('/')[0]}"
        )
    return _swap(store, name, bundle, expected, signing, model)


def remove_alias(
    store: Store,
    name: str,
    expected: BlobDigest | None = None,
    *,
    signing: AliasSigning | None = None,
) -> bool:
    """Let `name` stand for nothing; return whether this call is the one that removed it.

    Args:
        expected: remove only while it stands for this bundle; None removes whatever it is now.
        signing: sign the record of the removal, so that readers refuse the records before it.

    Raises:
        StoreError: the alias stands for another bundle than `expected`, or the store fails.
    """
    return _swap(store, name, None, expected, signing, "")


def slug(text: str) -> str:
    """Write `text` as one part of a store's key; what had to change gets a digest of the original.

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
    signing: AliasSigning | None,
    model: str,
) -> bool:
    for _ in range(ATTEMPTS):
        sealed, version = _sealed(store, name)
        now = _opened(store, name, sealed, None) if sealed else None
        proven = _proven(store, name, sealed, signing) if signing else now
        stands_for = now.bundle if now else None
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
        f"the alias {name!r} in {store.url} was moved by others in {ATTEMPTS} attempts; find out who"
    )


def _proven(
    store: Store, name: str, sealed: dict[str, str | None] | None, signing: AliasSigning
) -> AliasRecord | None:
    """The record if a trusted key signed it: one that somebody else wrote says nothing."""
    try:
        return _opened(store, name, sealed, signing.keys) if sealed else None
    except BundleError:
        return None


def _written(fields: dict[str, str | int | None], signing: AliasSigning | None) -> bytes:
    text = json.dumps(fields, sort_keys=True)
    if signing is None:
        return seal({"record": text})
    return seal({"envelope": signing.signer.sign(ALIAS, text.encode()).decode()})


def _sealed(store: Store, name: str) -> tuple[dict[str, str | None] | None, Version | None]:
    for _ in range(READS):
        found = store.read(_key(name))
        if found is None:
            return None, None
        if sealed := unseal(found.data):
            return sealed, found.version
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
    return AliasRecord(name, bundle, previous, counter, model, signers)


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

"""Names that stand for bundles (`ocr/production`), moved by compare-and-swap.

An alias is one small sealed record: the bundle's digest, the one before it (so that a roll-back needs
no archaeology), and a random token, which makes every move's record unlike all others: whoever wonders
whether a move took place reads the record and knows. A removed alias is a record without a bundle, not
an absent one: not every service deletes under a condition, and all of them swap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

from collage.errors import StoreError
from collage.store.base import BlobDigest, Store, Version
from collage.store.blobs import READS, is_digest, seal, unseal

ATTEMPTS = 100
"""Of a move; each one that fails means that another writer's move succeeded."""

_FOLDER, _SUFFIX = "aliases/", ".json"


@dataclass(frozen=True, slots=True)
class Alias:
    """What a name stands for, and stood for before its last move."""

    name: str
    bundle: BlobDigest
    previous: BlobDigest | None


def read_alias(store: Store, name: str) -> Alias | None:
    """Return the alias, or None where there is none. Raises StoreError where it was damaged."""
    return _read(store, name)[0]


def list_aliases(store: Store) -> Iterator[Alias]:
    """Iterate over all aliases, by name."""
    names = [
        entry.key.removeprefix(_FOLDER).removesuffix(_SUFFIX) for entry in store.entries(_FOLDER)
    ]
    for name in sorted(names):
        if found := read_alias(store, name):
            yield found


def move_alias(
    store: Store, name: str, bundle: BlobDigest, expected: BlobDigest | None = None
) -> bool:
    """Let `name` stand for `bundle`; return whether this call is the one that moved it.

    Args:
        expected: move only from this bundle; None moves from whatever it is now.

    Raises:
        StoreError: the alias stands for another bundle than `expected`, or the store fails.
    """
    return _swap(store, name, bundle, expected)


def remove_alias(store: Store, name: str, expected: BlobDigest | None = None) -> bool:
    """Let `name` stand for nothing; return whether this call is the one that removed it.

    Args:
        expected: remove only while it stands for this bundle; None removes whatever it is now.

    Raises:
        StoreError: the alias stands for another bundle than `expected`, or the store fails.
    """
    return _swap(store, name, None, expected)


def _swap(store: Store, name: str, bundle: BlobDigest | None, expected: BlobDigest | None) -> bool:
    for _ in range(ATTEMPTS):
        now, version = _read(store, name)
        stands_for = now.bundle if now else None
        if stands_for == bundle:
            return False
        if expected and stands_for != expected:
            stands = f"stands for {stands_for}" if stands_for else "does not exist"
            raise StoreError(
                f"the alias {name!r} in {store.url} {stands}, not for {expected}: somebody moved it. "
                "Look at what it is now, then decide again"
            )
        record = seal({"bundle": bundle, "previous": stands_for, "token": uuid4().hex})
        if store.swap(_key(name), record, version):
            return True
    raise StoreError(
        f"the alias {name!r} in {store.url} was moved by others in {ATTEMPTS} attempts; find out who"
    )


def _read(store: Store, name: str) -> tuple[Alias | None, Version | None]:
    for _ in range(READS):
        found = store.read(_key(name))
        if found is None:
            return None, None
        fields = unseal(found.data)
        if fields is not None:
            return _parse(store, name, fields), found.version
    raise StoreError(
        f"{_key(name)} in the store {store.url} was changed or damaged. Delete it there and move the "
        "alias again (`collage alias`)"
    )


def _parse(store: Store, name: str, fields: dict[str, str | None]) -> Alias | None:
    bundle, previous = fields.get("bundle", ""), fields.get("previous")
    if bundle is None:
        return None
    if not is_digest(bundle) or (previous is not None and not is_digest(previous)):
        raise StoreError(
            f"{_key(name)} in the store {store.url} names no bundle; install the Collage that wrote it"
        )
    return Alias(name, BlobDigest(bundle), BlobDigest(previous) if previous else None)


def _key(name: str) -> str:
    return f"{_FOLDER}{name}{_SUFFIX}"

"""Aliases' records of a store, and who signs them."""

from collage.store.aliases import AliasSigning
from collage.store.bundle_statements import BundleSigning
from collage.store.statement import SignedModel


def signing(key, model="ocr", version=""):
    return BundleSigning(AliasSigning.by(key.signer), SignedModel(model, version))


def record(store, alias):
    return store.read(f"aliases/{alias}.json")


def put(store, alias, data):
    """Write as somebody who can write to the store and has no key."""
    actual = record(store, alias)
    assert store.swap(f"aliases/{alias}.json", data, actual.version if actual else None)

"""A reader with a key, and bundles that are signed with it."""

import json

import pytest

from collage.runtime.signature import trusted_keys
from collage.store.alias_counters import Verification
from collage.store.bundles import publish_bundle
from tests.store.signing.records import signing
from tests.support.keys import make_key


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


@pytest.fixture
def address(tmp_path):
    """Of a folder: what is signed does not depend on the kind of store."""
    return str(tmp_path / "store")


@pytest.fixture
def key(tmp_path):
    return make_key(tmp_path)


@pytest.fixture
def checks(key, tmp_path):
    """What a reader verifies with who trusts the key."""
    return Verification(trusted_keys([key.public]), tmp_path / "seen")


@pytest.fixture
def publish(store, make_bundle, key):
    """Publish a signed bundle of its own content under an alias; return its digest."""

    def make(name, alias, model="ocr", by=key):
        folder = make_bundle(name, plan_json=json.dumps([name]).encode())
        return publish_bundle(store, folder, [alias], signing(by, model)).digest

    return make

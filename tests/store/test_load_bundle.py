"""`collage.load` straight from a store: fetched, verified, and gone from the disk with the bundle."""

import gc

import numpy as np
import pytest

import collage
from collage.errors import BundleError, OptionError, StoreError
from collage.store.aliases import remove_alias
from collage.store.bundles import publish_bundle
from tests.runtime.conftest import bundle as relu_bundle  # noqa: F401 - a fixture
from tests.support.keys import make_key

NAME = "ocr/production"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "collage" / "fetched"


@pytest.fixture
def published(store, address, relu_bundle, cache):  # noqa: F811
    """The address of a store with a bundle; its digest."""
    return address, publish_bundle(store, relu_bundle, [NAME]).digest


def test_an_alias_or_a_digest_is_loaded_and_runs(published, cache):
    address, digest = published
    x = np.array([[-1.0, 2.0] * 4], np.float32)
    for name in (NAME, digest):
        bundle = collage.load(address, alias=name)
        bundle.check()
        np.testing.assert_array_equal(bundle.run({"x": x})["y"], np.maximum(x, 0))
        assert [folder.name[:8] for folder in cache.glob(".loaded-*")] == [".loaded-"]
        del bundle
        gc.collect()
        assert not list(cache.glob(".loaded-*"))


def test_a_missing_alias_leaves_nothing_behind(published, store, cache):
    address, _ = published
    remove_alias(store, NAME)
    with pytest.raises(StoreError, match=NAME):
        collage.load(address, alias=NAME)
    assert not list(cache.glob(".loaded-*"))


def test_an_unsigned_alias_is_refused_where_keys_are_trusted(published, tmp_path):
    address, _ = published
    with pytest.raises(BundleError, match="sign"):
        collage.load(address, [make_key(tmp_path).public], alias=NAME)


def test_an_address_needs_the_name_of_a_bundle(tmp_path):
    with pytest.raises(OptionError, match="alias='ocr/production'"):
        collage.load("s3://bucket/prefix")
    with pytest.raises(OptionError, match="there is no folder"):
        collage.load(tmp_path / "none", alias=NAME)

"""Loading of a published bundle straight from its store, for `collage.load(STORE, alias=NAME)`.

The bundle is fetched into a folder beside the cache of fetched files. The folder exists as long as the loaded
bundle, or its process; the folder of a process that was killed is removed by the next load.
"""

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from collage.errors import StoreError
from collage.runtime.loader import LoadedBundle, load
from collage.runtime.signature import configured_keys
from collage.store.alias_counters import Verification
from collage.store.bundles import fetch_bundle
from collage.store.cache import BundleCache
from collage.store.open import open_store
from collage.store.scratch import scratch_folder

FOLDERS = ".loaded-"
"""Prefix of the folders of loaded bundles."""


def load_published(
    address: str | Path,
    name: str,
    verify_keys: Sequence[Path] = (),
    *,
    cache_dir: Path,
    warm: bool = False,
) -> LoadedBundle:
    """Load the bundle that an alias or a digest of a store stands for.

    Args:
        address: address of the store, as of `open_store`.
        name: alias, or digest of the bundle.
        verify_keys: public keys, as of `collage.runtime.loader.load`; the alias must be signed too.
        cache_dir: local folder of fetched files, and of the counters of signed aliases.
        warm: whether the original model opens now.

    Raises:
        OptionError: the address or a key is invalid.
        StoreError: the store does not answer, or has no such bundle.
        BundleError: as of `collage.runtime.loader.load`.
    """
    keys = configured_keys(verify_keys)
    checks = Verification(keys, cache_dir / "seen-aliases") if keys else None
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(cache_dir, FOLDERS)) / "bundle"
        except OSError as error:
            raise StoreError(
                f"{cache_dir} cannot be written ({error.strerror}); free space there, or set XDG_CACHE_HOME"
            ) from error
        store = open_store(address, writes=False, must_exist=True)
        fetch_bundle(store, name, folder, cache=BundleCache(cache_dir), verification=checks)
        bundle = load(folder, keys or (), warm=warm)
        weakref.finalize(bundle, stack.pop_all().close)
    return bundle

"""Samples of a compile request: in the store under a prefix of their own, named by digest.

    samples/<digest>.npz      the arrays of one sample set, or the settings      create

A request names them by digest and has their shapes. Nothing else in the store has a value of a sample: costs,
searches, kernels and reports are shared, and readable by more accounts than this prefix.
"""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from collage.errors import DamagedError, OptionError, StoreError
from collage.frontend.sample_files import Arrays, UserSamples, read_set
from collage.runtime.json_fields import is_digest
from collage.store.base import Store
from collage.store.blobs import digest_of, read_checked, trash_key

if TYPE_CHECKING:
    from collage.pipeline.request import CompileRequest


def sample_files(samples: UserSamples) -> tuple[tuple[str, ...], str, Mapping[str, bytes]]:
    """Return the digests of the sets, the digest of the settings ("" without), and all content by digest."""
    sets = [_packed(arrays) for arrays in samples.sets]
    settings = _packed(samples.settings) if samples.settings else b""
    content = {str(digest_of(data)): data for data in (*sets, *([settings] if settings else []))}
    digests = tuple(str(digest_of(data)) for data in sets)
    return digests, str(digest_of(settings)) if settings else "", content


def put_samples(store: Store, content: Mapping[str, bytes]) -> None:
    """Store sample files by digest; existing ones are not sent again. Raises StoreError."""
    for digest, data in content.items():
        if store.stat(sample_key(digest)) is None:
            store.create(sample_key(digest), data)


def fetch_samples(store: Store, request: "CompileRequest") -> UserSamples:
    """Return the samples of a request.

    Raises:
        StoreError: a file is not in the store, is damaged, or holds no arrays.
    """
    return UserSamples(
        tuple(_fetch(store, digest) for digest in request.samples),
        _fetch(store, request.settings) if request.settings else {},
    )


def sample_key(digest: str) -> str:
    """Return the key of a sample file. Raises StoreError for an invalid digest."""
    if not is_digest(digest):
        raise StoreError(f"{digest!r} is no digest of samples")
    return f"samples/{digest}.npz"


def _fetch(store: Store, digest: str) -> Arrays:
    key = sample_key(digest)
    for place in (key, trash_key(key)):
        data = read_checked(store, place, digest)
        if data is not None:
            try:
                return read_set(io.BytesIO(data), key)
            except OptionError as error:
                raise DamagedError(f"{key} in the store {store.url}: {error}") from error
    raise StoreError(f"the store {store.url} has no {key}; submit the model again")


def _packed(arrays: Arrays) -> bytes:
    """Return the arrays as .npz content; equal arrays have equal bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: arrays[name] for name in sorted(arrays)})  # type: ignore[arg-type]
    return buffer.getvalue()

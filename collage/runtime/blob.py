"""Kernel blobs from a backend to the plug-in: a JSON header and aligned tensors.

    "COLLAGE1" | u64 LE header length | JSON header | zeros up to 64 | tensors, each 64-aligned

The header's entry `tensors` lists dtype, shape, offset (from the first tensor) and nbytes. Equal
inputs give equal bytes: keys are sorted and gaps are zero. `native/core/blob.cc` reads the same format.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from collage.errors import BackendError

MAGIC = b"COLLAGE1"
ALIGNMENT = 64

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
Header = Mapping[str, Json]


def pack(header: Header, tensors: Sequence[np.ndarray]) -> bytes:
    """Return the blob of `header` (without an entry `tensors`) and `tensors`.

    >>> header, tensors = unpack(pack({"threads": 1}, [np.arange(3, dtype="int32")]))
    >>> header["threads"], tensors[0].tolist()
    (1, [0, 1, 2])
    """
    entries: list[Json] = []
    offset = 0
    for tensor in tensors:
        entries.append({
            "dtype": tensor.dtype.name, "shape": list(tensor.shape), "offset": offset,
            "nbytes": tensor.nbytes,
        })  # fmt: skip
        offset = _align(offset + tensor.nbytes)
    text = json.dumps({**header, "tensors": entries}, sort_keys=True).encode()
    parts = [_pad(MAGIC + struct.pack("<Q", len(text)) + text)]
    parts += [_pad(np.ascontiguousarray(tensor).tobytes()) for tensor in tensors]
    return b"".join(parts)


def unpack(blob: bytes) -> tuple[dict[str, Json], list[np.ndarray]]:
    """Return header and tensors (read-only views of `blob`).

    Raises:
        BackendError: not a blob, or truncated.
    """
    header = _header(blob, 0)
    tensors = []
    for entry, (dtype, first, end) in zip(header["tensors"], tensor_ranges(blob), strict=True):
        if end > len(blob):
            raise BackendError("the kernel blob is truncated")
        flat = np.frombuffer(blob, dtype, count=prod(entry["shape"]), offset=first)
        tensors.append(flat.reshape(entry["shape"]))
    return header, tensors


def tensor_ranges(blob: bytes, start: int = 0) -> list[tuple[str, int, int]]:
    """Return dtype, first byte and end of each tensor of the blob that begins at byte `start` of `blob`.

    Raises:
        BackendError: not a blob.
    """
    header = _header(blob, start)
    length = struct.unpack_from("<Q", blob, start + len(MAGIC))[0]
    data = start + _align(len(MAGIC) + 8 + length)
    return [
        (entry["dtype"], data + entry["offset"], data + entry["offset"] + entry["nbytes"])
        for entry in header["tensors"]
    ]


def _header(blob: bytes, start: int) -> dict[str, Any]:
    first = start + len(MAGIC) + 8
    if len(blob) < first or not blob.startswith(MAGIC, start):
        raise BackendError(f"not a kernel blob: it does not start with {MAGIC.decode()}")
    (length,) = struct.unpack_from("<Q", blob, start + len(MAGIC))
    header: dict[str, Any] = json.loads(blob[first : first + length])
    return header


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _pad(data: bytes) -> bytes:
    return data.ljust(_align(len(data)), b"\0")

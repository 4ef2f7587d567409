"""Kernel blobs from a backend to the plug-in: a JSON header and aligned tensors.

    "COLLAGE1" | u64 LE header length | JSON header | zeros up to 64 | tensors, each 64-aligned

The header's entry `tensors` lists dtype, shape, offset (from the first tensor) and nbytes. Equal
inputs give equal bytes: keys are sorted and gaps are zero. `native/core/blob.cc` reads the same format.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod

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
    start = len(MAGIC) + 8
    if len(blob) < start or not blob.startswith(MAGIC):
        raise BackendError(f"not a kernel blob: it does not start with {MAGIC.decode()}")
    (length,) = struct.unpack_from("<Q", blob, len(MAGIC))
    header = json.loads(blob[start : start + length])
    data = _align(start + length)
    tensors = []
    for entry in header["tensors"]:
        first = data + entry["offset"]
        if first + entry["nbytes"] > len(blob):
            raise BackendError("the kernel blob is truncated")
        flat = np.frombuffer(blob, entry["dtype"], count=prod(entry["shape"]), offset=first)
        tensors.append(flat.reshape(entry["shape"]))
    return header, tensors


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _pad(data: bytes) -> bytes:
    return data.ljust(_align(len(data)), b"\0")

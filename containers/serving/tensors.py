"""Tensors of a request: from JSON values or raw bytes to arrays.

Types and numbers are checked on Python's values before numpy sees them: numpy would make one array of
fixed-width strings out of many short strings and a long one, of quadratic size. Nothing is converted in
silence: a fraction for an integer, or a number that the type cannot hold, is an error.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from collage.errors import InputError

DATATYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16",
    "FP32": "float32", "FP64": "float64",
}  # fmt: skip
MAX_REQUEST_RANK = 32
MAX_SIZE = (1 << 31) - 1
_TAKEN: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""Types of JSON values that a kind of tensor takes."""


def checked_shape(name: str, value: object) -> tuple[int, ...]:
    """Return the shape of the input `name`. Raises InputError where it is no list of sizes."""
    sizes = value if type(value) is list and len(value) <= MAX_REQUEST_RANK else [None]
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in sizes):
        raise InputError(f"input {name!r}: the shape {shown(value)} is no list of sizes")
    return tuple(sizes)


def from_json(name: str, data: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Make the array of nested or flat JSON values. Raises InputError where they do not fit."""
    values = _flat(name, data)
    if len(values) != prod(shape):
        raise InputError(
            f"input {name!r}: the shape {list(shape)} has {prod(shape)} values, not {len(values)}"
        )
    if not set(map(type, values)) <= _TAKEN[dtype.kind]:
        raise InputError(f"input {name!r}: the data is not {dtype.name}")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.array(values, dtype)
        held = dtype.kind != "f" or bool(np.isfinite(array).all())
    except OverflowError:
        held = False
    if not held:
        raise InputError(f"input {name!r}: {dtype.name} cannot hold all of the data")
    return array.reshape(shape)


def from_bytes(
    name: str, tail: memoryview, size: object, dtype: np.dtype[Any], *, shape: tuple[int, ...]
) -> np.ndarray:
    """Make the array of the first `size` bytes of `tail`, which are little-endian; nothing is copied.

    Raises:
        InputError: the tensor has another size, or there are too few bytes.
    """
    expected = prod(shape) * dtype.itemsize
    if type(size) is not int or size != expected or size > len(tail):
        raise InputError(
            f"input {name!r}: {dtype.name}{list(shape)} has {expected} bytes; binary_data_size says "
            f"{shown(size)} and {len(tail)} bytes are left"
        )
    return np.frombuffer(tail, dtype.newbyteorder("<"), prod(shape)).reshape(shape)


def shown(value: object) -> str:
    """Show what a client sent, shortened: an error repeats no megabytes."""
    if isinstance(value, str):
        value = value[:80]
    elif isinstance(value, list):
        value = value[:16]
    elif isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    text = repr(value) if not isinstance(value, dict) else "an object"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flat(name: str, data: object) -> Sequence[object]:
    values: Sequence[object] = data if type(data) is list else [data]
    while values and type(values[0]) is list:
        if not all(type(row) is list for row in values) or len(set(map(len, values))) > 1:  # type: ignore[arg-type]
            raise InputError(f"input {name!r}: the data is no regular array")
        values = list(chain.from_iterable(values))  # type: ignore[arg-type]
    return values

"""The fields of a TensorProto in a survey, and their check against its shape.

The size of a tensor's data follows from shape and element type. Inline data and external data must match
it: other files are truncated or damaged.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import onnx

from collage.errors import ModelError

_ELEMENT_BYTES = {"FLOAT": 4, "DOUBLE": 8, "INT64": 8, "UINT64": 8, "INT32": 4, "UINT32": 4, "INT16": 2,
          "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1, "FLOAT8E4M3FN": 1,
          "FLOAT8E4M3FNUZ": 1, "FLOAT8E5M2": 1, "FLOAT8E5M2FNUZ": 1, "FLOAT8E8M0": 1, "COMPLEX64": 8,
          "COMPLEX128": 16, "INT4": 0.5, "UINT4": 0.5, "FLOAT4E2M1": 0.5, "INT2": 0.25,
          "UINT2": 0.25}  # fmt: skip
ELEMENT_BITS = {
    number: int(8 * _ELEMENT_BYTES[name])
    for name, number in onnx.TensorProto.DataType.items()
    if name in _ELEMENT_BYTES
}
STRING: int = onnx.TensorProto.STRING
DATA_FIELDS = {
    "float_data": 4,
    "double_data": 8,
    "int32_data": 0,
    "int64_data": 0,
    "uint64_data": 0,
}
"""Encoded size of an element in bytes; 0 means a varint."""


@dataclass(frozen=True)
class ExternalTensor:
    """A tensor with its data in another file, as declared by the model.

    `size_bytes` follows from shape and type; `length` is None if the model omits it.
    """

    name: str
    location: str
    offset: int
    length: int | None
    size_bytes: int


@dataclass
class TensorFields:
    """The fields of a TensorProto."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    raw_bytes: int | None = None
    elements: Counter[str] = field(default_factory=Counter)
    is_external: bool = False
    entries: list[tuple[str, str]] = field(default_factory=list)


def tensor_bytes(dims: Sequence[int], data_type: int) -> int:
    """Return the size of a tensor's data in bytes, from its shape and ONNX type number."""
    return bytes_of(prod(dims), ELEMENT_BITS[data_type])


def bytes_of(elements: int, bits: int) -> int:
    """Return the size of elements with this number of bits each, in bytes."""
    return (elements * bits + 7) // 8


def external_tensor(tensor: TensorFields, size_bytes: int) -> ExternalTensor:
    """Check and return the location of a tensor's external data. Raises ModelError."""
    entries = dict(tensor.entries)
    if len(entries) != len(tensor.entries):
        raise ModelError(f"tensor {tensor.name!r} has duplicate entries for its external data")
    if not entries.get("location"):
        raise ModelError(f"tensor {tensor.name!r} has no location of its external data")
    offset, length = (_number(tensor.name, key, entries.get(key)) for key in ("offset", "length"))
    if length is not None and length != size_bytes:
        raise mismatch(tensor, f"{length} bytes", str(size_bytes))
    return ExternalTensor(
        tensor.name, entries["location"], offset or 0, length, size_bytes=size_bytes
    )


def _number(tensor: str, key: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ModelError(f"the {key} {text[:40]!r} of tensor {tensor!r} in its file is no number")
    return int(text)


def require_elements(tensor: TensorFields, count: int, bits: int | None) -> None:
    """Compare the number of elements with the shape. Raises ModelError."""
    if tensor.data_type == STRING:
        fitting: tuple[int, ...] = (count,)
    elif bits is not None and bits < 8:
        fitting = (count, -(-count * bits // 8), -(-count * bits // 32))
    else:
        is_complex = tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
        fitting = (count * (2 if is_complex else 1),)
    element_count = sum(tensor.elements.values())
    if element_count not in fitting:
        raise mismatch(tensor, f"{element_count} elements", str(fitting[0]))


def mismatch(tensor: TensorFields, actual: str, needed: str) -> ModelError:
    """Return the error of a tensor with more or less data than its shape needs."""
    return ModelError(
        f"tensor {tensor.name!r} with the shape {tensor.dims} has {actual} of data and needs {needed}:"
        " truncated or damaged"
    )

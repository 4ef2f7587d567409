"""Values of an original model: between Python's objects and the plug-in's (`native/core/original_model.h`).

| type | object |
|---|---|
| tensor | numpy array, or an object with `__dlpack__` as an input; text is an array of `str` |
| sequence | list |
| map | dict |
| optional | None, or the value |

numpy has no float8: the arrays are those of `ml_dtypes`, and the plug-in takes them as bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.runtime.arrays import as_array, as_tensor, numpy_dtype
from collage.runtime.fallback import ModelValue
from collage.runtime.tensor_exchange import is_on_gpu, receive
from collage.runtime.value_types import FLOAT8, STRING, Kind, ValueType

OutputValue = np.ndarray | list[Any] | dict[Any, Any] | None
Native = Any
"""A value of the plug-in."""


def to_native(value: object, declared: ModelValue) -> Native:
    """Convert an input.

    Raises:
        InputError: the input has another type.
    """
    return _to_native(value, declared.type, declared)


def from_native(value: Native, declared: ValueType) -> OutputValue:
    """Convert an output; its memory is the caller's."""
    if value is None:
        return None
    if declared.kind is Kind.OPTIONAL and declared.element is not None:
        return from_native(value, declared.element)
    if declared.kind is Kind.SEQUENCE and declared.element is not None:
        return [from_native(element, declared.element) for element in value[1]]
    if declared.kind is Kind.MAP:
        keys, values = _tensor_from(value[1], declared.dtype), _map_values(value[2], declared)
        return dict(zip(keys.tolist(), values, strict=True))
    return _tensor_from(value, declared.dtype)


def _to_native(value: object, kind: ValueType, declared: ModelValue) -> Native:
    if kind.kind is Kind.TENSOR:
        return _tensor_to(value, kind.dtype, declared)
    if kind.element is not None and kind.kind is Kind.OPTIONAL:
        return None if value is None else _to_native(value, kind.element, declared)
    if kind.element is not None and kind.kind is Kind.SEQUENCE:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise InputError(f"input {declared.name!r} is a {type(value).__name__}; give a list")
        return [
            "sequence",
            [_to_native(element, kind.element, declared) for element in value],
        ]
    if not isinstance(value, Mapping):
        raise InputError(f"input {declared.name!r} is a {type(value).__name__}; give a dict")
    values = kind.element.dtype if kind.element else ""
    parts = [(list(value), kind.dtype), (list(value.values()), values)]
    return ["map", *(_tensor_to(_array(*part), part[1], declared) for part in parts)]


def _array(values: Sequence[object], dtype: str) -> np.ndarray:
    return np.array(values, object if dtype == STRING else numpy_dtype(dtype))


def _tensor_to(value: object, dtype: str, declared: ModelValue) -> Native:
    if dtype == STRING:
        return _strings_to(np.asarray(value), declared)
    received = receive(declared.name, value, 0)
    if str(received.dtype) != dtype:
        raise InputError(
            f"input {declared.name!r} has dtype {received.dtype}; expected {dtype}. "
            f"Convert it with .astype({dtype!r})."
        )
    if is_on_gpu(received):
        raise InputError(
            f"input {declared.name!r} lies on a GPU, and the original model runs on the CPU; move it there"
        )
    if not isinstance(received, np.ndarray):
        return received if received.is_contiguous() else as_tensor(np.array(as_array(received)))
    if not (received.flags.c_contiguous and received.flags.writeable):
        received = np.array(received, order="C")
    return as_tensor(received.view(np.uint8) if dtype in FLOAT8 else received)


def _strings_to(array: np.ndarray, declared: ModelValue) -> Native:
    import tvm_ffi

    if array.dtype.kind not in "OUS" and array.size:
        raise InputError(f"input {declared.name!r} has dtype {array.dtype}; give an array of str")
    texts = [_encoded(text, declared) for text in array.ravel().tolist()]
    return ["strings", tvm_ffi.Shape(array.shape), texts]


def _encoded(text: object, declared: ModelValue) -> bytes:
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise InputError(
            f"input {declared.name!r} has an element of type {type(text).__name__}; give text"
        )
    return text.encode()


def _tensor_from(value: Native, dtype: str) -> np.ndarray:
    if dtype == STRING:
        array = np.empty(len(value[2]), object)
        array[:] = [bytes(text).decode(errors="replace") for text in value[2]]
        return array.reshape(tuple(value[1]))
    array = as_array(value)
    return array.view(numpy_dtype(dtype)) if dtype in FLOAT8 else array


def _map_values(value: Native, declared: ValueType) -> list[Any]:
    dtype = declared.element.dtype if declared.element else ""
    values: list[Any] = _tensor_from(value, dtype).tolist()
    return values

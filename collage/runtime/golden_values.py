"""Values of an original model as plain arrays, for a bundle's golden data, and back.

A tensor is one array: text is an array of numpy's text type, float8 an array of bytes. A sequence is its
length and its elements, a map its keys and its values, each under the name of the value with a suffix.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from collage.runtime.arrays import numpy_dtype
from collage.runtime.value_types import FLOAT8, STRING, Kind, ValueType

LENGTH, KEYS, VALUES = "length", "keys", "values"


def to_arrays(name: str, value: Any, declared: ValueType) -> dict[str, np.ndarray]:
    """Return the arrays of a value by name; none for an absent optional value.

    >>> sorted(to_arrays("y", [np.zeros(2)], ValueType(Kind.SEQUENCE, element=ValueType(Kind.TENSOR))))
    ['y#0', 'y#length']
    """
    if value is None:
        return {}
    if declared.element is not None and declared.kind is Kind.OPTIONAL:
        return to_arrays(name, value, declared.element)
    if declared.element is not None and declared.kind is Kind.SEQUENCE:
        arrays = {f"{name}#{LENGTH}": np.array(len(value))}
        for position, element in enumerate(value):
            arrays |= to_arrays(f"{name}#{position}", element, declared.element)
        return arrays
    if declared.element is not None and declared.kind is Kind.MAP:
        return {
            f"{name}#{KEYS}": _plain(list(value), declared.dtype),
            f"{name}#{VALUES}": _plain(list(value.values()), declared.element.dtype),
        }
    return {name: _plain(value, declared.dtype)}


def from_arrays(name: str, arrays: Mapping[str, np.ndarray], declared: ValueType) -> Any:
    """Return the value with these arrays; None where they are missing.

    Raises:
        KeyError: some of its arrays are missing.
    """
    if declared.element is not None and declared.kind is Kind.OPTIONAL:
        return from_arrays(name, arrays, declared.element)
    if declared.element is not None and declared.kind is Kind.SEQUENCE:
        if f"{name}#{LENGTH}" not in arrays:
            return None
        return [
            from_arrays(f"{name}#{position}", arrays, declared.element)
            for position in range(int(arrays[f"{name}#{LENGTH}"]))
        ]
    if declared.kind is Kind.MAP:
        if f"{name}#{KEYS}" not in arrays:
            return None
        keys, values = arrays[f"{name}#{KEYS}"], arrays[f"{name}#{VALUES}"]
        return dict(zip(keys.tolist(), values.tolist(), strict=True))
    array = arrays.get(name)
    if array is not None and declared.dtype in FLOAT8:
        return array.view(numpy_dtype(declared.dtype))
    return array


def _plain(value: Any, dtype: str) -> np.ndarray:
    """Return an array that a file holds without pickled objects."""
    if dtype == STRING:
        return np.asarray(value, dtype=np.str_)
    if isinstance(value, np.ndarray):
        return value.view(np.uint8) if dtype in FLOAT8 else value
    return np.asarray(value, numpy_dtype(dtype))

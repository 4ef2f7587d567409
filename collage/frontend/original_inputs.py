"""Seeded inputs of an original model with text, sequences or maps, which no function of an executable has."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from collage.errors import DimensionError, OptionError
from collage.frontend.samples import converted
from collage.graph.dataflow import TensorType
from collage.runtime.arrays import numpy_dtype
from collage.runtime.fallback import ModelValue
from collage.runtime.value_types import STRING, Kind, ValueType

WORDS = ("one", "two", "three", "a b", "", "Ünïcode", "1.5", "0")
DRAWN_ELEMENTS = 2
"""Elements of a drawn sequence, entries of a drawn map."""
_INTEGER_LIMIT = 8


def draw_values(
    inputs: tuple[ModelValue, ...], shapes: Mapping[str, tuple[int, ...]], seed: int
) -> dict[str, Any]:
    """Draw a value for every input without a default.

    Args:
        inputs: inputs of the model.
        shapes: shapes of inputs by name; other open dimensions have the extent 1.
        seed: seed of the generator.

    Raises:
        DimensionError: a shape is not one of the input's.
    """
    generator = np.random.default_rng(seed)
    return {
        value.name: _draw(value.type, _shape(value, shapes.get(value.name)), generator)
        for value in inputs
        if not value.has_default
    }


def typed_values(
    inputs: tuple[ModelValue, ...], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the user's values with the types of the model's inputs.

    Raises:
        OptionError: an unknown input, one that is no tensor, or a value that does not fit.
    """
    declared = {value.name: value for value in inputs}
    return {name: _typed(name, array, declared) for name, array in values.items()}


def _typed(name: str, array: np.ndarray, declared: Mapping[str, ModelValue]) -> np.ndarray:
    value = declared.get(name)
    if value is None:
        known = ", ".join(declared) or "none"
        raise OptionError(
            f"the samples have a value of {name!r}, and the model has no such input; its inputs are {known}"
        )
    if value.type.kind is not Kind.TENSOR:
        raise OptionError(f"{value} is no tensor, and samples are tensors; leave it out")
    shape = array.shape if array.ndim else _shape(value, None)
    if value.type.dtype != STRING:
        return converted(name, array, TensorType(_shape(value, shape), value.type.dtype))
    if array.dtype.kind != "U":
        raise OptionError(f"input {name} holds strings, and its sample {array.dtype}")
    return np.broadcast_to(array, _shape(value, shape)).astype(object)


def _shape(value: ModelValue, bound: tuple[int, ...] | None) -> tuple[int, ...]:
    declared = value.shape or ()
    if bound is None:
        return tuple(max(extent, 1) if extent < 0 else extent for extent in declared)
    fits = value.shape is None or (
        len(bound) == len(declared)
        and all(extent in (-1, size) for extent, size in zip(declared, bound, strict=True))
    )
    if not fits:
        raise DimensionError(
            f"the shape binds {value.name!r} to {list(bound)}, and the model has {value}; give such a shape"
        )
    return bound


def _draw(kind: ValueType, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    if kind.kind is Kind.TENSOR:
        return _tensor(kind.dtype, shape, generator)
    assert kind.element is not None, "only a tensor has no element"
    if kind.kind is Kind.OPTIONAL:
        return _draw(kind.element, shape, generator)
    if kind.kind is Kind.SEQUENCE:
        return [_draw(kind.element, shape or (1,), generator) for _ in range(DRAWN_ELEMENTS)]
    values = _tensor(kind.element.dtype, (DRAWN_ELEMENTS,), generator)
    keys = WORDS[:DRAWN_ELEMENTS] if kind.dtype == STRING else range(DRAWN_ELEMENTS)
    return dict(zip(keys, values.tolist(), strict=True))


def _tensor(dtype: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if dtype == STRING:
        words = [WORDS[place] for place in generator.integers(0, len(WORDS), int(np.prod(shape)))]
        return np.array(words, object).reshape(shape)
    kind = numpy_dtype(dtype)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        return generator.integers(0, _INTEGER_LIMIT, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)

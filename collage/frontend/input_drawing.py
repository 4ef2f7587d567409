"""Drawing of inputs within their ranges: floats normal, integers in range, booleans even, masks of ones."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from collage.frontend.input_ranges import DEFAULT_LIMIT, InputRange
from collage.frontend.model import Function
from collage.graph.dataflow import TensorType
from collage.runtime.arrays import numpy_dtype


class Variant(NamedTuple):
    """An attempt: the cap of integers (None: none), the position of the choice, and the masks' value."""

    cap: int | None = None
    choice: int = 0
    masks: int = 1


FIRST = Variant()


def variants(ranges: Mapping[str, InputRange]) -> Iterator[Variant]:
    """Yield the attempts: as stated, other choices, smaller integers, and masks of zeros."""
    choices = max([len(stated.choices) for stated in ranges.values()], default=0)
    for masks in (1, 0) if any(map(is_mask, ranges)) else (1,):
        yield from (Variant(None, choice, masks) for choice in range(max(1, choices)))
        yield from (Variant(cap, 0, masks) for cap in (2, 1))


def is_mask(name: str) -> bool:
    """Tell whether an input is named as a mask."""
    return "mask" in name.lower()


def draw_inputs(
    function: Function,
    ranges: Mapping[str, InputRange],
    seed: int,
    *,
    fixed: Mapping[str, np.ndarray],
    variant: Variant = FIRST,
) -> dict[str, np.ndarray]:
    """Draw the inputs without a fixed value, in the function's order.

    Args:
        function: an imported function.
        ranges: ranges of the drawn inputs.
        seed: seed of the drawn values.
        fixed: values of the other inputs.
        variant: the attempt; default: everything as stated.
    """
    generator = np.random.default_rng(seed)
    types = function.graph.types
    return {
        name: fixed[name]
        if name in fixed
        else _random(name, types[name], ranges[name], generator, variant=variant)
        for name in function.graph.inputs
    }


def _random(
    name: str,
    tensor: TensorType,
    stated: InputRange,
    generator: np.random.Generator,
    *,
    variant: Variant,
) -> np.ndarray:
    if stated.choices and tensor.dtype != "bool":
        choice = stated.choices[min(variant.choice, len(stated.choices) - 1)]
        return np.full(tensor.shape, choice).astype(numpy_dtype(tensor.dtype))
    if tensor.dtype == "bool":
        if is_mask(name):
            return np.full(tensor.shape, bool(variant.masks))
        return generator.integers(0, 2, tensor.shape).astype(np.bool_)
    if tensor.dtype in ("int8", "uint8") and stated.limit is None:
        bounds = np.iinfo(tensor.dtype)
        return generator.integers(bounds.min, bounds.max + 1, tensor.shape).astype(tensor.dtype)
    if tensor.dtype.startswith(("int", "uint")):
        if is_mask(name):
            return np.full(tensor.shape, variant.masks, tensor.dtype)
        low, high = _integer_range(stated, variant.cap, np.iinfo(tensor.dtype))
        return generator.integers(low, high, tensor.shape).astype(tensor.dtype)
    drawn = generator.standard_normal(tensor.shape, dtype=np.float32)
    return _within(drawn, stated, generator).astype(numpy_dtype(tensor.dtype))


def _integer_range(stated: InputRange, cap: int | None, dtype: np.iinfo) -> tuple[int, int]:
    """Return the lowest value and the exclusive bound of integers."""
    low = max(int(stated.low or 0), int(dtype.min)) if stated.low is not None else 0
    limit = low + DEFAULT_LIMIT if stated.limit is None else int(stated.limit)
    limit = min(limit, int(dtype.max), low + cap if cap else limit)
    return (low, limit) if low < limit else (min(low, limit - 1), limit)


def _within(drawn: np.ndarray, stated: InputRange, generator: np.random.Generator) -> np.ndarray:
    """Return normal floats; within both stated bounds evenly spread ones; else beyond one bound."""
    if stated.low is not None and stated.limit is not None:
        spread: np.ndarray = generator.uniform(stated.low, stated.limit, drawn.shape)
        return spread.astype(np.float32)
    if stated.low is not None:
        raised: np.ndarray = np.abs(drawn) + np.float32(stated.low)
        return raised
    return drawn

"""Padding of inputs to the nearest larger shape set, and cropping of the outputs.

The user declares which axes of inputs may be padded, with which value, and which axes of outputs are
cropped. The compiler has compared padded calls with the original model (`collage.verify.shape_trial`). A call
goes to the function that needs the fewest added elements; the first one of equals.

The way of each combination of shapes is looked up once and kept, so dispatch takes microseconds. Padded
inputs lie in buffers with the padding's lifetime, so kernels bind them once; the caller holds a lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from collage.errors import InputError
from collage.runtime.arrays import aligned_empty, numpy_dtype
from collage.runtime.json_fields import Field
from collage.runtime.manifest_limits import MAX_DIMENSIONS, MAX_EXTENT

MAX_KEPT_WAYS = 4096
"""Combinations of shapes whose way is kept."""

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Crop:
    """An axis of an output whose extent follows a padded axis: ceil(extent / divisor) + offset."""

    output: str
    axis: int
    divisor: int = 1
    offset: int = 0

    def extent(self, padded_extent: int) -> int:
        """Return the output's extent for an extent of the input."""
        return -(-padded_extent // self.divisor) + self.offset


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """An axis of an input that may be padded at its end.

    Attributes:
        input: name of the input.
        axis: number of the axis, from 0.
        value: value of added elements.
        crops: axes of outputs that follow this one.
    """

    input: str
    axis: int
    value: float = 0.0
    crops: tuple[Crop, ...] = ()


@dataclass(frozen=True, slots=True)
class PaddedWay:
    """How inputs of certain shapes reach a function.

    Attributes:
        function: name of the function.
        shapes: shapes of its inputs, by name.
        extents: extent of each cropped axis, by output.
    """

    function: str
    shapes: Shapes
    extents: Mapping[str, Mapping[int, int]]


class Padding:
    """The padded axes of one entry, with buffers; a caller holds its own lock."""

    def __init__(
        self, axes: Sequence[PaddedAxis], functions: Mapping[str, Shapes], dtypes: Mapping[str, str]
    ) -> None:
        """Prepare the dispatch.

        Args:
            axes: axes that may be padded.
            functions: shapes of the inputs of each function.
            dtypes: dtype of each input, by numpy's name.
        """
        self._axes = {(axis.input, axis.axis): axis for axis in axes}
        self._values = {axis.input: axis.value for axis in axes}
        self._functions = functions
        self._dtypes = dtypes
        self._ways: dict[tuple[tuple[str, Shape], ...], PaddedWay | None] = {}
        self._buffers: dict[tuple[str, Shape], np.ndarray] = {}

    def find(self, shapes: Shapes) -> PaddedWay | None:
        """Return the way of inputs with these shapes; None if no function can take them padded."""
        key = tuple(shapes.items())
        if key not in self._ways:
            if len(self._ways) >= MAX_KEPT_WAYS:
                self._ways.clear()
            self._ways[key] = self._search(shapes)
        return self._ways[key]

    def padded(self, feeds: Mapping[str, np.ndarray], way: PaddedWay) -> dict[str, np.ndarray]:
        """Return the inputs with the function's shapes, in buffers where they are padded."""
        return {
            name: array if array.shape == way.shapes[name] else self._fill(name, array, way)
            for name, array in feeds.items()
        }

    def check(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Raise InputError for an input of another dtype, which a buffer would convert unnoticed."""
        for name, array in feeds.items():
            if str(array.dtype) != self._dtypes[name]:
                raise InputError(
                    f"input {name!r} has dtype {array.dtype}; expected {self._dtypes[name]}. "
                    f"Convert it with .astype({self._dtypes[name]!r})."
                )

    def _fill(self, name: str, array: np.ndarray, way: PaddedWay) -> np.ndarray:
        shape = way.shapes[name]
        if (name, shape) not in self._buffers:
            self._buffers[name, shape] = aligned_empty(shape, numpy_dtype(self._dtypes[name]))
        buffer = self._buffers[name, shape]
        buffer[...] = self._values[name]
        buffer[tuple(slice(extent) for extent in array.shape)] = array
        return buffer

    def _search(self, shapes: Shapes) -> PaddedWay | None:
        sizes = {
            name: sum(prod(shape) for shape in targets.values())
            for name, targets in self._functions.items()
            if self._fits(shapes, targets)
        }
        if not sizes:
            return None
        function = min(sizes, key=lambda name: sizes[name])
        return PaddedWay(function, self._functions[function], self._extents(shapes))

    def _fits(self, shapes: Shapes, targets: Shapes) -> bool:
        return shapes.keys() == targets.keys() and all(
            len(shape) == len(targets[name])
            and all(
                extent == target or (0 < extent < target and (name, axis) in self._axes)
                for axis, (extent, target) in enumerate(zip(shape, targets[name], strict=True))
            )
            for name, shape in shapes.items()
        )

    def _extents(self, shapes: Shapes) -> dict[str, dict[int, int]]:
        extents: dict[str, dict[int, int]] = {}
        for (name, number), axis in self._axes.items():
            for crop in axis.crops:
                extent = crop.extent(shapes[name][number])
                extents.setdefault(crop.output, {})[crop.axis] = extent
        return extents


def cropped(outputs: Mapping[str, np.ndarray], way: PaddedWay) -> dict[str, np.ndarray]:
    """Return the outputs without what belongs to the padding, as arrays of the caller."""
    return {
        name: _crop(value, way.extents[name]) if name in way.extents else value
        for name, value in outputs.items()
    }


def _crop(value: np.ndarray, extents: Mapping[int, int]) -> np.ndarray:
    if all(value.shape[axis] == extent for axis, extent in extents.items()):
        return value
    return value[tuple(slice(extents.get(axis)) for axis in range(value.ndim))].copy()


def read_padded_axis(raw: Field) -> PaddedAxis:
    """Return a padded axis from its entry in a manifest. Raises FieldError for an invalid field."""
    return PaddedAxis(
        raw["input"].text(),
        raw["axis"].integer(0, MAX_DIMENSIONS),
        raw["value"].any_number(),
        tuple(
            Crop(
                crop["output"].text(),
                crop["axis"].integer(0, MAX_DIMENSIONS),
                crop["divisor"].integer(1, MAX_EXTENT),
                crop["offset"].integer(-MAX_EXTENT, MAX_EXTENT),
            )
            for crop in raw["crops"].items()
        ),
    )

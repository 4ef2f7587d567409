"""Operation graphs of a region for the plug-in's cuDNN kernel: values and operations on them.

The graph is complete; `native/cudnn/cudnn_graph.cc` translates it to cuDNN's descriptors field by field
(its header lists the fields). Each value has its own extents and strides, so a transposition at the
region's border is a view of the same memory.

A region is one operation graph, or several graphs with copies to other strides between them for channels-last
engines.
"""

from collections.abc import Sequence

import numpy as np

from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.index_set import IndexSet
from collage.runtime.blob import Json

Shape = Sequence[int]
SUMS = "float32"
"""Dtype of all sums and of virtual values."""


def strides_of(shape: Shape, order: Sequence[int] = ()) -> list[int]:
    """Return strides in elements; `order` lists the dimensions, the largest stride first.

    >>> strides_of((2, 3, 4)), strides_of((2, 3, 4), (0, 2, 1))
    ([12, 4, 1], [12, 1, 3])
    """
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    return strides


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the order of [batch, channels, spatial...] with contiguous channels."""
    return (0, *range(2, rank), 1)


class CudnnGraphBuilder:
    """Collects the values and operation graphs of one kernel."""

    def __init__(self, function: Function, nodes: IndexSet) -> None:
        self._inputs, self._outputs = region_values(function, nodes)
        self._values: list[dict[str, Json]] = []
        self._constants: list[np.ndarray] = []
        self._graphs: list[dict[str, Json]] = []
        self._function = function

    def named(self, name: str, shape: Shape, strides: Sequence[int] = ()) -> int:
        """Add an input, output or weight of the region, viewed with `shape` and `strides`."""
        dtype = self._function.graph.types[name].dtype
        if name in self._function.weights:
            return self.constant(self._function.weights[name].reshape(shape))
        if name in self._inputs:
            return self._value("input", dtype, shape, strides, place=self._inputs.index(name))
        return self._value("output", dtype, shape, strides, place=self._outputs.index(name))

    def constant(self, array: np.ndarray, order: Sequence[int] = ()) -> int:
        """Add a constant; `order` is its order in memory."""
        self._constants.append(np.ascontiguousarray(array.transpose(order) if order else array))
        strides = strides_of(array.shape, order)
        return self._value(
            "constant", array.dtype.name, array.shape, strides, place=len(self._constants) - 1
        )

    def number(self, number: float, rank: int) -> int:
        """Add a scalar for tensors of `rank`."""
        index = self._value("number", SUMS, (1,) * rank)
        self._values[index]["number"] = float(number)
        return index

    def buffer(self, dtype: str, shape: Shape, strides: Sequence[int] = ()) -> int:
        """Add scratch memory of the kernel."""
        return self._value("buffer", dtype, shape, strides)

    def virtual(self, shape: Shape, strides: Sequence[int] = (), dtype: str = SUMS) -> int:
        """Add a virtual value: one without memory."""
        return self._value("virtual", dtype, shape, strides)

    def like(self, value: int) -> int:
        """Add a virtual value with the extents and strides of `value`."""
        original = self._values[value]
        return self._value("virtual", SUMS, original["shape"], original["strides"])  # type: ignore[arg-type]

    def rank(self, value: int) -> int:
        """Return the number of dimensions of a value."""
        return len(self._values[value]["shape"])  # type: ignore[arg-type]

    def begin(self, rank: int = 0) -> None:
        """Begin an operation graph; `rank` is the rank of the heuristic's proposal."""
        self._graphs.append({"rank": rank, "operations": []})

    def operation(self, op: str, **fields: Json) -> None:
        """Add an operation to the current graph."""
        operations = self._graphs[-1]["operations"]
        assert isinstance(operations, list)
        operations.append({"op": op, **fields})

    def pointwise(self, mode: str, **fields: Json) -> None:
        """Add a pointwise operation."""
        self.operation("pointwise", mode=mode, **fields)

    def copy(self, source: int, target: int) -> None:
        """Append a copy of a value to other strides."""
        self._graphs.append({"from": source, "to": target})

    def header(self, dtype: str, *, rounds: bool = False) -> dict[str, Json]:
        """Return the blob's header; `rounds` means TF32 in place of float32."""
        header: dict[str, Json] = {
            "values": self._values, "graphs": self._graphs, "inputs": len(self._inputs),
            "outputs": len(self._outputs), "exact": int(dtype == "float32" and not rounds),
        }  # fmt: skip
        return {**header, "tf32": 1} if rounds else header

    @property
    def constants(self) -> list[np.ndarray]:
        return self._constants

    def _value(
        self, role: str, dtype: str, shape: Shape, strides: Sequence[int] = (), *, place: int = 0
    ) -> int:
        self._values.append({
            "role": role, "dtype": dtype, "shape": list(shape),
            "strides": list(strides or strides_of(shape)), "place": place,
        })  # fmt: skip
        return len(self._values) - 1

"""Ranges of generated inputs: bounds that the graph itself states.

A value reaches operators through casts, reshapes, slices and the like. Each operator it reaches may bound
it: an index lies within its axis, Clip and comparisons name limits, a divisor is not 0, a loop makes at least
one turn. A scalar that is compared for equality (a sampling rate) is one of the constants that it is compared
with. Target shapes, sizes and axes are settings: no value can be guessed, and the user must give one.

Linear in the nodes for each input. The ranges are no proof: ONNX Runtime has the last word (`inputs`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx

from collage.frontend.model import Function
from collage.frontend.onnx_attributes import attributes_of
from collage.frontend.onnx_proto import nodes_within

DEFAULT_LIMIT = 8
"""Exclusive bound of integers without any other bound."""

_CARRIERS = frozenset({
    "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Flatten", "Expand", "Slice",
    "Concat", "Split", "Tile", "Pad", "Gather", "Clip", "Where", "Max", "Min",
})  # fmt: skip
"""Operators whose outputs are values of their first operands."""

_SETTINGS: Mapping[str, frozenset[int]] = {
    "Reshape": frozenset({1}), "Resize": frozenset({2, 3}), "Upsample": frozenset({1}),
    "Squeeze": frozenset({1}), "Unsqueeze": frozenset({1}), "Split": frozenset({1}),
    "Slice": frozenset({3}), "Pad": frozenset({1, 3}), "CumSum": frozenset({1}),
    "CumProd": frozenset({1}), "CenterCropPad": frozenset({1}), "Col2Im": frozenset({1, 2}),
    "MaxUnpool": frozenset({2}), "AffineGrid": frozenset({1}), "DFT": frozenset({1, 2}),
    "STFT": frozenset({1, 3}), "MelWeightMatrix": frozenset(range(5)),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), frozenset({1}),
    ),
}  # fmt: skip
"""Operands that are target shapes, sizes, axes or widths, by operator."""

_AT_LEAST_ONE: Mapping[str, frozenset[int]] = {
    "Loop": frozenset({0}), "Range": frozenset({1, 2}), "TopK": frozenset({1}), "OneHot": frozenset({1}),
    "Tile": frozenset({1}), "Expand": frozenset({1}), "ConstantOfShape": frozenset({0}),
    "Div": frozenset({1}), "Mod": frozenset({1}), "NonMaxSuppression": frozenset({2}),
    "LSTM": frozenset({4}), "GRU": frozenset({4}), "RNN": frozenset({4}),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), frozenset({0})),
}  # fmt: skip
"""Operands below 1 that end in nothing to compute, or in an error, by operator."""

_FRACTIONS: Mapping[str, frozenset[int]] = {
    "NonMaxSuppression": frozenset({3, 4}), "Dropout": frozenset({1}),
}  # fmt: skip
"""Operands between 0 and 1 by operator."""


class Bounds(NamedTuple):
    """Bounds of one use: the lowest value, and the limit above all values; None: no bound."""

    low: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class InputRange:
    """What the graph states about the values of one input.

    Attributes:
        low: lowest value; None where nothing bounds it.
        limit: exclusive bound; None where nothing bounds it.
        choices: constants that a scalar is compared with for equality, in the order of the graph.
        setting: operator that needs a value from the user, "" without one.
    """

    low: float | None = None
    limit: float | None = None
    choices: tuple[float, ...] = ()
    setting: str = ""


class _Use(NamedTuple):
    """A node that an input's value reaches, at these operands."""

    proto: onnx.NodeProto
    places: frozenset[int]


def input_range(function: Function, name: str) -> InputRange:
    """Return what the graph states about an input."""
    step = 0 if "float" in function.graph.types[name].dtype else 1
    is_scalar = function.graph.types[name].size_bytes <= 8 and not any(
        size > 1 for size in function.graph.types[name].shape
    )
    bounds: list[Bounds] = []
    choices: dict[float, None] = {}
    setting = ""
    for use in _uses(function, name):
        bounds += _bounds(function, use, step)
        if is_scalar:
            bounds += _compared(function, use, step)
            choices.update(dict.fromkeys(_equals(function, use)))
        if use.places & _SETTINGS.get(use.proto.op_type, frozenset()):
            setting = setting or use.proto.op_type
    low = max((bound.low for bound in bounds if bound.low is not None), default=None)
    limit = min((bound.limit for bound in bounds if bound.limit is not None), default=None)
    if low is not None and limit is not None and low >= limit:
        low = None
    return InputRange(low, limit, tuple(choices), setting)


def _uses(function: Function, name: str) -> Iterator[_Use]:
    """Yield the nodes that a value reaches unchanged, those in bodies included."""
    reached = {name}
    for outer in function.onnx_nodes:
        for proto in nodes_within(outer):
            places = frozenset(n for n, operand in enumerate(proto.input) if operand in reached)
            if places:
                yield _Use(proto, places)
                if proto.op_type in _CARRIERS and _carries(proto, places):
                    reached.update(filter(None, proto.output))


def _carries(proto: onnx.NodeProto, places: frozenset[int]) -> bool:
    """Tell whether the outputs are values of these operands: not so of an index or a target shape."""
    if proto.op_type in ("Concat", "Max", "Min"):
        return True
    return bool(places & ({1, 2} if proto.op_type == "Where" else {0}))


def _bounds(function: Function, use: _Use, step: int) -> Iterator[Bounds]:
    """Yield the bounds of a use; `step` is the distance of the input's numbers, 0 for floats."""
    op, places = use.proto.op_type, use.places
    if read := _INDICES.get(op):
        yield from (Bounds(limit=limit) for limit in read(function, use) if limit > 0)
    if places & _AT_LEAST_ONE.get(op, frozenset()) and (step or op == "Range"):
        yield Bounds(low=1)
    if places & _FRACTIONS.get(op, frozenset()):
        yield Bounds(0.0, 1.0)
    if op == "Clip" and 0 in places:
        low, high = (_constant(function, use, place) for place in (1, 2))
        yield Bounds(low, None if high is None else high + step)


def _gather(function: Function, use: _Use) -> Iterator[int]:
    table = _shape(function, use, 0)
    if 1 in use.places and table:
        yield table[attributes_of(use.proto).integer("axis", 0)]


def _gather_nd(function: Function, use: _Use) -> Iterator[int]:
    table, indices = _shape(function, use, 0), _shape(function, use, 1)
    if 1 in use.places and table and indices:
        yield min(table[: indices[-1]])


def _scatter(function: Function, use: _Use) -> Iterator[int]:
    table = _shape(function, use, 0)
    if 1 in use.places and table:
        yield min(table)


def _one_hot(function: Function, use: _Use) -> Iterator[int]:
    depth = _constant(function, use, 1)
    if 0 in use.places and depth is not None:
        yield int(depth)


def _top_k(function: Function, use: _Use) -> Iterator[int]:
    values = _shape(function, use, 0)
    if 1 in use.places and values:
        yield values[attributes_of(use.proto).integer("axis", -1)] + 1


def _sequence(function: Function, use: _Use) -> Iterator[int]:
    sequence = _shape(function, use, 0)
    if 4 in use.places and sequence:
        yield sequence[attributes_of(use.proto).integer("layout", 0)] + 1


_INDICES: Mapping[str, Callable[[Function, _Use], Iterator[int]]] = {
    "Gather": _gather, "GatherElements": _gather, "GatherND": _gather_nd, "ScatterND": _scatter,
    "ScatterElements": _scatter, "OneHot": _one_hot, "TopK": _top_k, "LSTM": _sequence,
    "GRU": _sequence, "RNN": _sequence,
}  # fmt: skip


def _compared(function: Function, use: _Use, step: int) -> Iterator[Bounds]:
    """Yield the side of a constant on which the comparison with a scalar holds."""
    op = use.proto.op_type
    if op not in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual") or len(use.places) != 1:
        return
    (place,) = use.places
    constant = _constant(function, use, 1 - place)
    if constant is None:
        return
    is_below = op.startswith("Less") == (place == 0)
    includes = "Equal" in op
    if is_below:
        yield Bounds(limit=constant + (step if includes else 0))
    else:
        yield Bounds(low=constant + (0 if includes else step))


def _equals(function: Function, use: _Use) -> Iterator[float]:
    if use.proto.op_type == "Equal" and len(use.places) == 1:
        (place,) = use.places
        constant = _constant(function, use, 1 - place)
        if constant is not None:
            yield constant


def _shape(function: Function, use: _Use, place: int) -> tuple[int, ...]:
    name = use.proto.input[place] if place < len(use.proto.input) else ""
    static_type = function.graph.types.get(name)
    return static_type.shape if static_type else ()


def _constant(function: Function, use: _Use, place: int) -> float | None:
    """Return a constant operand of one element, of the graph or of a body's Constant node."""
    name = use.proto.input[place] if place < len(use.proto.input) else ""
    value: np.ndarray | None = function.weights.get(name)
    if value is None or value.size != 1 or value.dtype.kind not in "iufb":
        return None
    return float(value.reshape(-1)[0])

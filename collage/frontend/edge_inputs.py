"""Inputs of a region at the edges of their types.

Each set starts from ordinary values and changes few elements, at other places in each input, so that one run
shows both what becomes of the special elements and that the others stay right. The sets are:

* finite: zeros of both signs, denormals, ties, the ends of exp's range, a row of equal values; the smallest
  and largest integers; a row that a mask of booleans hides;
* NaN: one or two elements;
* infinite: one of each sign, and a row of -inf, as a mask leaves it;
* negative: indices counted from the end;
* out of range: one index beyond its axis.

A region with If, Loop or Scan gets no NaN and no infinities: its bodies would run another number of times, or
without end.

Integers get their extremes only where every reader in the region does arithmetic on them: a divisor may be
zero, a shape may need all memory. 8-bit integers cover their range in ordinary inputs.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collage.errors import BackendError
from collage.frontend.index_checks import IndexCheck, index_checks
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.frontend.onnx_proto import sub_graphs
from collage.frontend.region import region_values
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices

logger = logging.getLogger(__name__)

FINITE_EDGES = (0.0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 1.5, 2.5, -2.5, 88.6, -88.6, -104.0)
"""exp(88.6) is the largest float32 of exp, exp(-104) is 0."""
TIES = (0.5, 1.5, 2.5)
"""Magnitudes that rounding to integers may take either way; multiples of the scale where a node quantises."""
EXTREME_TYPES = ("int32", "int64")
_ARITHMETIC = frozenset({
    "Add", "Sub", "Mul", "Abs", "Neg", "Sign", "Min", "Max", "Clip", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "Where", "Identity", "Transpose", "Concat", "And", "Or", "Not",
})  # fmt: skip
_DATA_FIRST = frozenset({
    "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Slice", "Split", "Tile", "Gather",
})  # fmt: skip
_DIVIDING = frozenset({"Mod", "Div"})


class EdgeKind(StrEnum):
    """Kind of a set of edge inputs."""

    FINITE = "finite edge values"
    NAN = "NaN"
    INFINITE = "infinities"
    NEGATIVE_INDEX = "negative indices"
    INDEX_OUT_OF_RANGE = "an index out of range"


@dataclass(frozen=True)
class EdgeInputs:
    """Inputs of a region, in order.

    Attributes:
        kind: kind of the changed elements.
        inputs: all inputs.
        special: masks of NaN and infinite elements, by input; None without any.
    """

    kind: EdgeKind
    inputs: tuple[np.ndarray, ...]
    special: tuple[np.ndarray | None, ...] = ()


def edge_inputs(
    function: Function, nodes: IndexSet, ordinary: Sequence[np.ndarray]
) -> Iterator[EdgeInputs]:
    """Yield the sets that have a meaning for the region.

    Args:
        ordinary: ordinary values of the region's inputs, in the order of `region_values`.
    """
    names, _ = region_values(function, nodes)
    values = dict(zip(names, ordinary, strict=True))
    finite = _finite(function, nodes, values)
    if any(new is not old for new, old in zip(finite, ordinary, strict=True)):
        yield EdgeInputs(EdgeKind.FINITE, finite)
    for kind in () if has_bodies(function, nodes) else (EdgeKind.NAN, EdgeKind.INFINITE):
        special = tuple(
            _special(kind, number, value, alone=_is_alone(values))
            for number, value in enumerate(ordinary)
        )
        if any(mask is not None for _, mask in special):
            yield EdgeInputs(kind, tuple(v for v, _ in special), tuple(m for _, m in special))
    yield from _index_inputs(function, nodes, ordinary)


def has_bodies(function: Function, nodes: IndexSet) -> bool:
    """Tell whether a node of the region has bodies, as If, Loop and Scan have."""
    return any(any(sub_graphs(function.onnx_nodes[index])) for index in indices(nodes))


def _is_float(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" and value.size > 0


def _is_alone(values: Mapping[str, np.ndarray]) -> bool:
    """Tell whether every float input has one element."""
    return all(value.size <= 1 for value in values.values() if _is_float(value))


def _finite(
    function: Function, nodes: IndexSet, values: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, ...]:
    alone = _is_alone(values)
    changed = []
    for number, (name, value) in enumerate(values.items()):
        if _is_float(value) and (value.size > 1 or alone):
            value = _with_finite_edges(value, number, _rounding_step(function, nodes, name, values))
        elif (
            value.dtype.name in EXTREME_TYPES
            and value.size
            and _is_arithmetic(function, nodes, name)
        ):
            value = _with_extremes(value)
        elif value.dtype.kind == "b" and value.ndim > 1:
            value = value.copy()
            value.reshape(-1, value.shape[-1])[-1] = False
        changed.append(value)
    return tuple(changed)


def _rounding_step(
    function: Function, nodes: IndexSet, name: str, values: Mapping[str, np.ndarray]
) -> float:
    """Return the scale by which a node of the region quantises the value, 1 without one."""
    for index in indices(nodes):
        node = function.graph.nodes[index]
        if node.op == "QuantizeLinear" and node.inputs[0] == name:
            scale = function.weights.get(node.inputs[1], values.get(node.inputs[1]))
            if scale is not None and scale.size == 1:
                return float(scale.reshape(-1)[0])
    return 1.0


def _with_finite_edges(value: np.ndarray, number: int, step: float) -> np.ndarray:
    value = value.copy()
    if value.ndim > 1 and value.size > value.shape[-1] > 0:
        rows = value.reshape(-1, value.shape[-1])
        rows[-1] = rows[-1, 0]
    flat = value.reshape(-1)
    count = max(1, min(len(FINITE_EDGES), flat.size // 2))
    places = (np.arange(count) * (flat.size // count) + number) % flat.size
    scaled = [edge * step if abs(edge) in TIES else edge for edge in FINITE_EDGES]
    edges = np.roll(scaled, -number)[:count]
    # The row of equal values stays.
    kept = places < flat.size - (value.shape[-1] if value.ndim > 1 else 0)
    with np.errstate(over="ignore"):
        flat[places[kept]] = edges[kept].astype(value.dtype)
    return value


def _with_extremes(value: np.ndarray) -> np.ndarray:
    value = value.copy()
    bounds = np.iinfo(value.dtype)
    edges = np.array([bounds.min, bounds.max, -1, bounds.min // 2 + 1, 0, 1], value.dtype)
    flat = value.reshape(-1)
    count = min(flat.size, edges.size)
    flat[np.linspace(0, flat.size - 1, count).astype(int)] = edges[:count]
    return value


def _is_arithmetic(function: Function, nodes: IndexSet, name: str) -> bool:
    """Tell whether every node that the integers reach within the region does arithmetic on them.

    What a comparison makes of them is a mask, which has its meaning for every reader.
    """
    reached = {name}
    for index in indices(nodes):
        node = function.graph.nodes[index]
        places = [place for place, operand in enumerate(node.inputs) if operand in reached]
        if not places:
            continue
        if not _keeps_meaning(function, node, places):
            return False
        reached.update(v for v in node.outputs if function.type_of(v).dtype != "bool")
    return True


def _keeps_meaning(function: Function, node: Node, places: Sequence[int]) -> bool:
    if node.op in _DATA_FIRST:
        return places == [0] or node.op == "Gather"
    if node.op in _DIVIDING:
        divisor = function.weights.get(node.inputs[1])
        fmod = node_attributes(function, node.index).integer("fmod", 0)
        return (
            places == [0]
            and divisor is not None
            and not fmod
            and not np.isin(divisor, (0, -1)).any()
        )
    return node.op in _ARITHMETIC


def _special(
    kind: EdgeKind, number: int, value: np.ndarray, *, alone: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the value with its special elements and their mask; None for the mask if it has none."""
    if not _is_float(value) or (value.size == 1 and not alone):
        return value, None
    value, mask = value.copy(), np.zeros(value.shape, np.bool_)
    flat, marks = value.reshape(-1), mask.reshape(-1)
    elements = (np.nan,) if kind is EdgeKind.NAN else (np.inf, -np.inf)
    if kind is EdgeKind.INFINITE and value.ndim > 1 and value.size > 2 * value.shape[-1]:
        rows, row_marks = (array.reshape(-1, value.shape[-1]) for array in (value, mask))
        rows[-1], row_marks[-1] = -np.inf, True
    for position, element in enumerate(elements[: flat.size]):
        place = (flat.size * (position + 1) // (len(elements) + 2) + number) % flat.size
        flat[place], marks[place] = element, True
    return value, mask


def _index_inputs(
    function: Function, nodes: IndexSet, ordinary: Sequence[np.ndarray]
) -> Iterator[EdgeInputs]:
    try:
        checks = [check for check in index_checks(function, nodes) if ordinary[check.position].size]
    except BackendError as error:
        logger.debug("no indices are judged: %s", error)
        return
    if not checks:
        return
    negative, beyond = list(ordinary), list(ordinary)
    for check in checks:
        sizes = _sizes_of(check, ordinary[check.position])
        value = ordinary[check.position]
        negative[check.position] = np.where(value >= 0, value - sizes, value).astype(value.dtype)
    yield EdgeInputs(EdgeKind.NEGATIVE_INDEX, tuple(negative))
    first = checks[0]
    wrong = ordinary[first.position].copy()
    wrong.reshape(-1)[-1] = first.sizes[(wrong.size - 1) % len(first.sizes)]
    beyond[first.position] = wrong
    yield EdgeInputs(EdgeKind.INDEX_OUT_OF_RANGE, tuple(beyond))


def _sizes_of(check: IndexCheck, value: np.ndarray) -> np.ndarray:
    return np.resize(np.array(check.sizes, value.dtype), value.shape)

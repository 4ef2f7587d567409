"""The ONNX form of each Relax operator on elements, shapes, indices and reductions.

`OPERATORS` is the table: an operator's name and the function that writes its ONNX nodes. Operators of
neural networks are in `relax_nn_operators`. An operator that is in neither table is an error of the model,
and so is an attribute that ONNX cannot say (`Untranslatable`).
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from collage.frontend.onnx_proto import ELEMENT_TYPES
from collage.frontend.relax_graph import GraphWriter, Operator

Translation = Callable[[GraphWriter, Operator], list[str]]

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "log": "Log", "negative": "Neg", "round": "Round", "sigmoid": "Sigmoid",
    "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "isnan": "IsNaN", "isinf": "IsInf", "logical_not": "Not", "bitwise_not": "BitwiseNot",
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow",
    "maximum": "Max", "minimum": "Min", "equal": "Equal", "greater": "Greater", "less": "Less",
    "greater_equal": "GreaterOrEqual", "less_equal": "LessOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor", "where": "Where", "matmul": "MatMul",
}  # fmt: skip
"""Operators whose ONNX form is one node on the same operands."""

_REDUCTIONS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin",
    "prod": "ReduceProd",
}  # fmt: skip

_SCATTER = {"update": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _same(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        operator.require_input_dtype("out_dtype")
        return [writer.add(onnx_operator, operator.operands(writer))]

    return write


def _not_equal(writer: GraphWriter, operator: Operator) -> list[str]:
    return [writer.add("Not", [writer.add("Equal", operator.operands(writer))])]


def _isfinite(writer: GraphWriter, operator: Operator) -> list[str]:
    (value,) = operator.operands(writer)
    special = writer.add("Or", [writer.add("IsNaN", [value]), writer.add("IsInf", [value])])
    return [writer.add("Not", [special])]


def _square(writer: GraphWriter, operator: Operator) -> list[str]:
    (value,) = operator.operands(writer)
    return [writer.add("Mul", [value, value])]


def _rsqrt(writer: GraphWriter, operator: Operator) -> list[str]:
    return [writer.add("Reciprocal", [writer.add("Sqrt", operator.operands(writer))])]


def _trunc(writer: GraphWriter, operator: Operator) -> list[str]:
    (value,) = operator.operands(writer)
    floor = writer.add("Floor", [writer.add("Abs", [value])])
    return [writer.add("Mul", [writer.add("Sign", [value]), floor])]


def _floor_divide(writer: GraphWriter, operator: Operator) -> list[str]:
    operator.require(operator.is_float, "on integers")
    return [writer.add("Floor", [writer.add("Div", operator.operands(writer))])]


def _mod(writer: GraphWriter, operator: Operator) -> list[str]:
    """Remainder with the dividend's sign."""
    return [writer.add("Mod", operator.operands(writer), fmod=1)]


def _floor_mod(writer: GraphWriter, operator: Operator) -> list[str]:
    """Remainder with the divisor's sign."""
    first, second = operator.operands(writer)
    if not operator.is_float:
        return [writer.add("Mod", [first, second])]
    quotient = writer.add("Floor", [writer.add("Div", [first, second])])
    return [writer.add("Sub", [first, writer.add("Mul", [quotient, second])])]


def _clip(writer: GraphWriter, operator: Operator) -> list[str]:
    value = operator.operand(writer, 0)
    bounds = [np.asarray(bound, operator.numpy_dtype) for bound in operator.numbers(1)]
    return [writer.add("Clip", [value, *map(writer.constant, bounds)])]


def _astype(writer: GraphWriter, operator: Operator) -> list[str]:
    (value,) = operator.operands(writer)
    return [writer.add("Cast", [value], to=ELEMENT_TYPES[operator.result.dtype])]


def _reshape(writer: GraphWriter, operator: Operator) -> list[str]:
    return [writer.reshape(operator.operand(writer, 0), operator.result.shape)]


def _permute_dims(writer: GraphWriter, operator: Operator) -> list[str]:
    rank = len(operator.inputs[0].shape)
    axes = operator.integers("axes") or tuple(reversed(range(rank)))
    return [writer.transpose(operator.operand(writer, 0), [axis % rank for axis in axes])]


def _concat(writer: GraphWriter, operator: Operator) -> list[str]:
    names = operator.operands(writer)
    if operator.attributes.axis is None:
        names = [writer.reshape(name, (-1,)) for name in names]
        return [writer.add("Concat", names, axis=0)]
    return [writer.add("Concat", names, axis=int(operator.attributes.axis))]


def _stack(writer: GraphWriter, operator: Operator) -> list[str]:
    axis = int(operator.attributes.axis or 0) % len(operator.result.shape)
    shape = list(operator.inputs[0].shape)
    shape.insert(axis, 1)
    names = [writer.reshape(name, shape) for name in operator.operands(writer)]
    return [writer.add("Concat", names, axis=axis)]


def _split(writer: GraphWriter, operator: Operator) -> list[str]:
    axis = int(operator.attributes.axis) % len(operator.inputs[0].shape)
    sizes = [result.shape[axis] for result in operator.results]
    operands = [operator.operand(writer, 0), writer.integers(sizes)]
    return writer.add_several("Split", operands, len(sizes), axis=axis)


def _broadcast_to(writer: GraphWriter, operator: Operator) -> list[str]:
    return [writer.expand(operator.operand(writer, 0), operator.result.shape)]


def _strided_slice(writer: GraphWriter, operator: Operator) -> list[str]:
    axes, begins, ends = (operator.numbers(position) for position in (1, 2, 3))
    steps = operator.numbers(4) if len(operator.args) > 4 else [1] * len(axes)
    operator.require(not operator.attributes.assume_inbound, "with assume_inbound")
    bounds = [writer.integers([int(item) for item in part]) for part in (begins, ends, axes, steps)]
    return [writer.add("Slice", [operator.operand(writer, 0), *bounds])]


def _flip(writer: GraphWriter, operator: Operator) -> list[str]:
    bounds = [[-1], [-(2**62)], [int(operator.attributes.axis)], [-1]]
    return [writer.add("Slice", [operator.operand(writer, 0), *map(writer.integers, bounds)])]


def _take(writer: GraphWriter, operator: Operator) -> list[str]:
    values, positions = operator.operands(writer)
    axis = operator.attributes.axis
    if axis is None:
        values, size, axis = writer.reshape(values, (-1,)), prod(operator.inputs[0].shape), 0
    else:
        size = operator.inputs[0].shape[int(axis)]
    mode = str(operator.attributes.mode)
    operator.require(mode in ("fast", "clip", "wrap"), f"of mode {mode}")
    if mode != "fast":
        positions = writer.add("Cast", [positions], to=ELEMENT_TYPES["int64"])
    if mode == "clip":
        bounds = [writer.constant(np.asarray(bound, np.int64)) for bound in (0, size - 1)]
        positions = writer.add("Clip", [positions, *bounds])
    elif mode == "wrap":
        positions = writer.add("Mod", [positions, writer.constant(np.asarray(size, np.int64))])
    return [writer.add("Gather", [values, positions], axis=int(axis))]


def _filled(writer: GraphWriter, operator: Operator, value: float) -> list[str]:
    scalar = writer.constant(np.asarray(value, operator.result_numpy_dtype))
    return [writer.expand(scalar, operator.result.shape)]


def _full(writer: GraphWriter, operator: Operator) -> list[str]:
    value = writer.add(
        "Cast", [operator.operand(writer, 1)], to=ELEMENT_TYPES[operator.result.dtype]
    )
    return [writer.expand(value, operator.result.shape)]


def _arange(writer: GraphWriter, operator: Operator) -> list[str]:
    start, _, step = (operator.numbers(position)[0] for position in (0, 1, 2))
    values = start + step * np.arange(operator.result.shape[0])
    return [writer.constant(values.astype(operator.result_numpy_dtype))]


def _triangle(upper: int) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        diagonal = writer.constant(np.asarray(int(operator.numbers(1)[0]), np.int64))
        return [writer.add("Trilu", [operator.operand(writer, 0), diagonal], upper=upper)]

    return write


def _reduce(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        return [_reduced(writer, onnx_operator, operator.operand(writer, 0), operator)]

    return write


def _reduced(writer: GraphWriter, onnx_operator: str, value: str, operator: Operator) -> str:
    axes = operator.integers("axis")
    operands = [value, writer.integers(axes)] if axes else [value]
    return writer.add(onnx_operator, operands, keepdims=int(operator.attributes.keepdims))


def _variance(writer: GraphWriter, operator: Operator) -> list[str]:
    value, axes = operator.operand(writer, 0), operator.integers("axis")
    operands = [value, writer.integers(axes)] if axes else [value]
    centred = writer.add("Sub", [value, writer.add("ReduceMean", operands, keepdims=1)])
    return [_reduced(writer, "ReduceMean", writer.add("Mul", [centred, centred]), operator)]


def _std(writer: GraphWriter, operator: Operator) -> list[str]:
    return [writer.add("Sqrt", _variance(writer, operator))]


def _arg(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        value, axis = operator.operand(writer, 0), operator.attributes.axis
        if axis is None:
            value, axis = writer.reshape(value, (-1,)), 0
        position = writer.add(onnx_operator, [value], axis=int(axis), keepdims=1)
        return [writer.reshape(writer.cast(position, operator.result), operator.result.shape)]

    return write


def _cumsum(writer: GraphWriter, operator: Operator) -> list[str]:
    value, axis = operator.operand(writer, 0), operator.attributes.axis
    if axis is None:
        value, axis = writer.reshape(value, (-1,)), 0
    operands = [writer.cast(value, operator.result), writer.constant(np.asarray(axis, np.int64))]
    return [writer.add("CumSum", operands, exclusive=int(bool(operator.attributes.exclusive)))]


def _sorted(writer: GraphWriter, operator: Operator, count: int, largest: bool) -> list[str]:
    """Return the names of values and positions, in order."""
    rank = len(operator.inputs[0].shape)
    operands = [operator.operand(writer, 0), writer.integers([count])]
    axis = int(operator.attributes.axis) % rank
    return writer.add_several("TopK", operands, 2, axis=axis, largest=int(largest), sorted=1)


def _topk(writer: GraphWriter, operator: Operator) -> list[str]:
    count, kind = int(operator.attributes.k), str(operator.attributes.ret_type)
    if count < 1:
        count = operator.inputs[0].shape[int(operator.attributes.axis)]
    values, positions = _sorted(writer, operator, count, bool(operator.attributes.largest))
    wide = [writer.cast(positions, operator.results[-1])] if kind != "values" else []
    return [values, *wide] if kind == "both" else wide or [values]


def _sort(writer: GraphWriter, operator: Operator) -> list[str]:
    size = operator.inputs[0].shape[int(operator.attributes.axis)]
    return _sorted(writer, operator, size, bool(operator.attributes.descending))[:1]


def _argsort(writer: GraphWriter, operator: Operator) -> list[str]:
    size = operator.inputs[0].shape[int(operator.attributes.axis)]
    _, positions = _sorted(writer, operator, size, bool(operator.attributes.descending))
    return [writer.cast(positions, operator.result)]


def _gather_elements(writer: GraphWriter, operator: Operator) -> list[str]:
    axis = int(operator.attributes.axis)
    return [writer.add("GatherElements", operator.operands(writer), axis=axis)]


def _gather_nd(writer: GraphWriter, operator: Operator) -> list[str]:
    batch_dims = int(operator.attributes.batch_dims)
    return [writer.add("GatherND", operator.operands(writer), batch_dims=batch_dims)]


def _scatter(onnx_operator: str) -> Translation:
    def write(writer: GraphWriter, operator: Operator) -> list[str]:
        reduction = str(operator.attributes.reduction)
        operator.require(reduction in _SCATTER, f"of reduction {reduction}")
        attributes: dict[str, object] = {"reduction": _SCATTER[reduction]}
        if onnx_operator == "ScatterElements":
            attributes["axis"] = int(operator.attributes.axis)
        return [writer.add(onnx_operator, operator.operands(writer), **attributes)]

    return write


def _one_hot(writer: GraphWriter, operator: Operator) -> list[str]:
    """Compare with each position: ONNX's OneHot counts negative indices from the end, TVM does not."""
    values = [np.asarray(operator.numbers(at)[0], operator.result_numpy_dtype) for at in (1, 2)]
    rank, depth = len(operator.result.shape), int(operator.attributes.depth)
    axis = int(operator.attributes.axis) % rank
    shape = operator.inputs[0].shape
    indices = writer.reshape(operator.operand(writer, 0), (*shape[:axis], 1, *shape[axis:]))
    positions = np.arange(depth, dtype=operator.numpy_dtype)
    positions = positions.reshape((depth, *(1,) * (rank - 1 - axis)))
    hits = writer.add("Equal", [indices, writer.constant(positions)])
    return [writer.add("Where", [hits, *map(writer.constant, values)])]


def _repeat(writer: GraphWriter, operator: Operator) -> list[str]:
    value, shape = operator.operand(writer, 0), list(operator.inputs[0].shape)
    axis, count = operator.attributes.axis, int(operator.attributes.repeats)
    if axis is None:
        shape, axis = [prod(operator.inputs[0].shape)], 0
    axis = int(axis) % len(shape)
    value = writer.reshape(value, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    value = writer.expand(value, [*shape[: axis + 1], count, *shape[axis + 1 :]])
    return [writer.reshape(value, operator.result.shape)]


def _tile(writer: GraphWriter, operator: Operator) -> list[str]:
    repeats, shape = operator.integers("repeats"), operator.inputs[0].shape
    rank = max(len(repeats), len(shape))
    value = writer.reshape(operator.operand(writer, 0), (1,) * (rank - len(shape)) + shape)
    return [writer.add("Tile", [value, writer.integers([1] * (rank - len(repeats)) + [*repeats])])]


def _einsum(writer: GraphWriter, operator: Operator) -> list[str]:
    equation = str(operator.attributes.subscripts)
    return [writer.add("Einsum", operator.operands(writer), equation=equation)]


def _outer(writer: GraphWriter, operator: Operator) -> list[str]:
    first, second = operator.operands(writer)
    return [writer.add("Mul", [writer.reshape(first, (-1, 1)), second])]


OPERATORS: Mapping[str, Translation] = {
    **{name: _same(onnx_operator) for name, onnx_operator in _SAME.items()},
    **{name: _reduce(onnx_operator) for name, onnx_operator in _REDUCTIONS.items()},
    **dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims"), _reshape),
    "not_equal": _not_equal, "isfinite": _isfinite, "square": _square, "rsqrt": _rsqrt,
    "trunc": _trunc, "floor_divide": _floor_divide, "mod": _mod,
    "floor_mod": _floor_mod, "clip": _clip, "astype": _astype, "permute_dims": _permute_dims,
    "concat": _concat, "stack": _stack, "split": _split, "broadcast_to": _broadcast_to,
    "strided_slice": _strided_slice, "flip": _flip, "take": _take, "full": _full,
    "zeros": lambda writer, operator: _filled(writer, operator, 0),
    "zeros_like": lambda writer, operator: _filled(writer, operator, 0),
    "ones": lambda writer, operator: _filled(writer, operator, 1),
    "ones_like": lambda writer, operator: _filled(writer, operator, 1),
    "full_like": _full, "arange": _arange, "tril": _triangle(0), "triu": _triangle(1),
    "variance": _variance, "std": _std, "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"),
    "cumsum": _cumsum, "topk": _topk, "sort": _sort, "argsort": _argsort,
    "gather_elements": _gather_elements, "gather_nd": _gather_nd,
    "scatter_elements": _scatter("ScatterElements"), "scatter_nd": _scatter("ScatterND"),
    "one_hot": _one_hot, "repeat": _repeat, "tile": _tile, "einsum": _einsum, "outer": _outer,
}  # fmt: skip
"""Translations by the operator's name without `relax.`."""

"""Elementwise operators as `eltwise` and `binary` primitives, alone or as post-ops.

`node_post_ops` expresses a node as operations on one of its operands. A node on its own is a primitive of
the first operation, with the other ones as post-ops.
"""

import math
from collections.abc import Callable

import numpy as np

from collage.backends.common.primitives.node_view import NodeView
from collage.backends.common.primitives.primitive import Operand, PostOp, RegionPrimitive
from collage.errors import BackendError

LARGEST = float(np.finfo(np.float32).max)

BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min"}
"""Operators of two operands. `Pow` is not among them: its exponent is a constant."""


def _clip(view: NodeView) -> PostOp:
    bounds = [-LARGEST, LARGEST]
    for position, name in enumerate(("min", "max")):
        if name in view.attributes:
            bounds[position] = view.attributes.number(name, bounds[position])
        elif view.has(position + 1):
            bound_value = view.scalar(position + 1)
            if bound_value is None:
                raise BackendError("the bounds of Clip are computed at run time")
            bounds[position] = bound_value
    lowest, highest = (min(max(bound, -LARGEST), LARGEST) for bound in bounds)
    return PostOp("clip", lowest, highest)


def _power(view: NodeView) -> list[PostOp]:
    exponent = view.scalar(1)
    if exponent is None:
        raise BackendError("the exponent of Pow is no constant number")
    if exponent == 2.0:
        return [PostOp("square")]
    if exponent == 3.0:  # oneDNN's "pow" calls the C library for each element
        return [PostOp("square"), PostOp("mul", operand=view.source(0))]
    return [PostOp("sqrt") if exponent == 0.5 else PostOp("pow", 1.0, exponent)]


def _gelu(view: NodeView) -> PostOp:
    return PostOp(
        "gelu_tanh" if view.attributes.text("approximate", "none") == "tanh" else "gelu_erf"
    )


UNARY: dict[str, Callable[[NodeView], PostOp]] = {
    "Abs": lambda view: PostOp("abs"),
    "Clip": _clip,
    "Elu": lambda view: PostOp("elu", view.attributes.number("alpha", 1.0)),
    "Exp": lambda view: PostOp("exp"),
    "Gelu": _gelu,
    "HardSigmoid": lambda view: PostOp(
        "hardsigmoid", view.attributes.number("alpha", 0.2), view.attributes.number("beta", 0.5)
    ),
    "HardSwish": lambda view: PostOp("hardswish", 1 / 6, 0.5),
    "LeakyRelu": lambda view: PostOp("relu", view.attributes.number("alpha", 0.01)),
    "Log": lambda view: PostOp("log"),
    "Mish": lambda view: PostOp("mish"),
    "Neg": lambda view: PostOp("linear", -1.0, 0.0),
    "Reciprocal": lambda view: PostOp("pow", 1.0, -1.0),
    "Relu": lambda view: PostOp("relu"),
    "Round": lambda view: PostOp("round"),
    "Sigmoid": lambda view: PostOp("logistic"),
    "Softplus": lambda view: PostOp("soft_relu", 1.0),
    "Sqrt": lambda view: PostOp("sqrt"),
    "Swish": lambda view: PostOp("swish", view.attributes.number("alpha", 1.0)),
    "Tanh": lambda view: PostOp("tanh"),
}


ELEMENTWISE = frozenset({*UNARY, *BINARY, "Pow"})


def node_post_ops(view: NodeView, position: int) -> list[PostOp]:
    """Return the node's operations on its operand `position`; it has the result's shape.

    Raises:
        BackendError: oneDNN has no algorithm for the node.
    """
    if view.node.op in UNARY or view.node.op == "Pow":
        if position != 0:
            raise BackendError(f"{view.node.op} works on its first operand")
        return _power(view) if view.node.op == "Pow" else [UNARY[view.node.op](view)]
    if len(view.node.inputs) != 2:
        raise BackendError(f"{view.node.op} has {len(view.node.inputs)} operands, not 2")
    number = view.scalar(1 - position)
    if number is not None:
        return [_with_number(view.node.op, number, first=position == 0)]
    return _with_tensor(view.node.op, view.source(1 - position), first=position == 0)


def _with_number(op: str, number: float, first: bool) -> PostOp:
    match op:
        case "Add":
            return PostOp("linear", 1.0, number)
        case "Sub":
            return PostOp("linear", 1.0, -number) if first else PostOp("linear", -1.0, number)
        case "Mul":
            return PostOp("linear", number, 0.0)
        case "Div" if not first:
            return PostOp("pow", number, -1.0)
        case "Div":
            if abs(number) < 1 / LARGEST:
                raise BackendError("Div by a number whose reciprocal is no float32")
            return PostOp("linear", 1.0 / number, 0.0)
        case "Max":
            return PostOp("clip", number, math.inf)
        case _:
            return PostOp("clip", -math.inf, number)


def _with_tensor(op: str, operand: Operand, first: bool) -> list[PostOp]:
    if first or op in ("Add", "Mul", "Max", "Min"):
        return [PostOp(BINARY[op], operand=operand)]
    if op == "Sub":
        return [PostOp("linear", -1.0, 0.0), PostOp("add", operand=operand)]
    return [PostOp("pow", 1.0, -1.0), PostOp("mul", operand=operand)]


def elementwise(view: NodeView) -> list[RegionPrimitive]:
    """Translate a node outside of any other primitive."""
    position = _full_operand(view)
    first, *following = node_post_ops(view, position)
    source = view.source(position)
    if first.operand is None:
        primitive = view.primitive("eltwise", [source], first.as_step())
    else:
        primitive = view.primitive("binary", [source], first.as_step())
        primitive.sources = (source, _fitted(primitive, first.operand))
    for post_op in following:
        operand = _fitted(primitive, post_op.operand) if post_op.operand else None
        primitive.post_ops.append(PostOp(post_op.algorithm, post_op.alpha, post_op.beta, operand))
    return [primitive]


def _fitted(primitive: RegionPrimitive, operand: Operand) -> Operand:
    fitted = primitive.fitted(operand)
    if fitted is None:
        raise BackendError(f"an operand of shape {list(operand.shape)} does not broadcast")
    return fitted


def _full_operand(view: NodeView) -> int:
    """Return the position of an operand with the result's shape; activations before weights."""
    positions = range(len(view.node.inputs) if view.node.op in BINARY else 1)
    weights = view.function.weights
    for position in sorted(positions, key=lambda index: view.node.inputs[index] in weights):
        if view.shape(view.node.inputs[position]) == view.result_shape:
            return position
    raise BackendError("all operands are broadcast")

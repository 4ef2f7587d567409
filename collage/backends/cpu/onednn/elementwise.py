"""Element-wise operators as oneDNN's `eltwise` and `binary` algorithms, alone or after another step.

`terms` says what a node does to one of its operands, as post-operations. The same answer serves both:
a node on its own is a step made of its first term with the others behind it.
"""

from collections.abc import Callable

import numpy as np

from collage.backends.cpu.onednn.program import Draft, Post, Source
from collage.backends.cpu.onednn.view import NodeView
from collage.errors import BackendError

LARGEST = float(np.finfo(np.float32).max)

BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min"}
"""Operators of two operands; `Pow` takes a number as its second."""


def _clip(view: NodeView) -> Post:
    bounds = [-LARGEST, LARGEST]
    for position, name in enumerate(("min", "max")):
        if name in view.attributes:
            bounds[position] = view.number(name, bounds[position])
        elif view.has(position + 1):
            found = view.scalar(position + 1)
            if found is None:
                raise BackendError("the bounds of Clip are computed at run time")
            bounds[position] = found
    lowest, highest = (min(max(bound, -LARGEST), LARGEST) for bound in bounds)
    return Post("clip", lowest, highest)


def _power(view: NodeView) -> list[Post]:
    exponent = view.scalar(1)
    if exponent is None:
        raise BackendError("the exponent of Pow is no constant number")
    if exponent == 2.0:
        return [Post("square")]
    if exponent == 3.0:  # oneDNN's "pow" calls the C library for each element
        return [Post("square"), Post("mul", operand=view.source(0))]
    return [Post("sqrt") if exponent == 0.5 else Post("pow", 1.0, exponent)]


def _gelu(view: NodeView) -> Post:
    return Post("gelu_tanh" if view.text("approximate", "none") == "tanh" else "gelu_erf")


UNARY: dict[str, Callable[[NodeView], Post]] = {
    "Abs": lambda view: Post("abs"),
    "Clip": _clip,
    "Elu": lambda view: Post("elu", view.number("alpha", 1.0)),
    "Exp": lambda view: Post("exp"),
    "Gelu": _gelu,
    "HardSigmoid": lambda view: Post(
        "hardsigmoid", view.number("alpha", 0.2), view.number("beta", 0.5)
    ),
    "HardSwish": lambda view: Post("hardswish", 1 / 6, 0.5),
    "LeakyRelu": lambda view: Post("relu", view.number("alpha", 0.01)),
    "Log": lambda view: Post("log"),
    "Mish": lambda view: Post("mish"),
    "Neg": lambda view: Post("linear", -1.0, 0.0),
    "Reciprocal": lambda view: Post("pow", 1.0, -1.0),
    "Relu": lambda view: Post("relu"),
    "Round": lambda view: Post("round"),
    "Sigmoid": lambda view: Post("logistic"),
    "Softplus": lambda view: Post("soft_relu", 1.0),
    "Sqrt": lambda view: Post("sqrt"),
    "Swish": lambda view: Post("swish", view.number("alpha", 1.0)),
    "Tanh": lambda view: Post("tanh"),
}


ELEMENTWISE = frozenset({*UNARY, *BINARY, "Pow"})


def terms(view: NodeView, position: int) -> list[Post]:
    """What the node does to its operand `position`, which has the result's shape.

    Raises:
        BackendError: it cannot be said in oneDNN's algorithms.
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


def _with_number(op: str, number: float, first: bool) -> Post:
    match op:
        case "Add":
            return Post("linear", 1.0, number)
        case "Sub":
            return Post("linear", 1.0, -number) if first else Post("linear", -1.0, number)
        case "Mul":
            return Post("linear", number, 0.0)
        case "Div" if not first:
            return Post("pow", number, -1.0)
        case "Div":
            if abs(number) < 1 / LARGEST:
                raise BackendError("Div by a number whose reciprocal is no float32")
            return Post("linear", 1.0 / number, 0.0)
        case "Max":
            return Post("clip", number, LARGEST)
        case _:
            return Post("clip", -LARGEST, number)


def _with_tensor(op: str, other: Source, first: bool) -> list[Post]:
    if first or op in ("Add", "Mul", "Max", "Min"):
        return [Post(BINARY[op], operand=other)]
    if op == "Sub":
        return [Post("linear", -1.0, 0.0), Post("add", operand=other)]
    return [Post("pow", 1.0, -1.0), Post("mul", operand=other)]


def elementwise(view: NodeView) -> list[Draft]:
    """Translate a node that is a step of its own."""
    position = _whole_operand(view)
    first, *rest = terms(view, position)
    source = view.source(position)
    if first.operand is None:
        draft = view.draft("eltwise", [source], first.as_step())
    else:
        draft = view.draft("binary", [source], first.as_step())
        draft.sources = (source, _fitted(draft, first.operand))
    for post in rest:
        operand = _fitted(draft, post.operand) if post.operand else None
        draft.posts.append(Post(post.algorithm, post.alpha, post.beta, operand))
    return [draft]


def _fitted(draft: Draft, operand: Source) -> Source:
    found = draft.fitted(operand)
    if found is None:
        raise BackendError(f"an operand of shape {list(operand.shape)} does not broadcast")
    return found


def _whole_operand(view: NodeView) -> int:
    """The operand that is not broadcast; activations before weights."""
    places = range(len(view.node.inputs) if view.node.op in BINARY else 1)
    weights = view.function.weights
    for position in sorted(places, key=lambda place: view.node.inputs[place] in weights):
        if view.shape(view.node.inputs[position]) == view.result_shape:
            return position
    raise BackendError("all operands are broadcast")

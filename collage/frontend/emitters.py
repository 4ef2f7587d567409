"""Relax forms of ONNX operators with poor conversions in TVM.

TVM's converter turns `Clip`, `Pad`, `Tile` and reflected pads into TIR calls, opaque to every pattern, and
`Sum` into broadcasts, a stack and a sum. An emitter returns None to leave a node to TVM's converter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from tvm import relax

from collage.frontend.onnx_attributes import NodeAttributes, attributes_of
from collage.frontend.onnx_proto import tensor_type
from collage.frontend.relax_ir import build, relax_type
from collage.graph.dataflow import TensorType


@dataclass(frozen=True)
class Call:
    """An ONNX call; `operands` has None for omitted operands, `constants` holds embedded constants."""

    operands: Sequence[relax.Expr | None]
    constants: Sequence[np.ndarray | None]
    attributes: NodeAttributes
    types: Sequence[TensorType]

    def constant(self, position: int) -> np.ndarray | None:
        return self.constants[position] if position < len(self.constants) else None

    def operand(self, position: int) -> relax.Expr | None:
        return self.operands[position] if position < len(self.operands) else None


Emitter = Callable[[Call], relax.Expr | None]


def emit(model: onnx.ModelProto) -> relax.Function | None:
    """Return the only node of `model` in Relax; None leaves it to TVM's converter."""
    node = model.graph.node[0]
    emitter = _EMITTERS.get(node.op_type)
    types = {value.name: tensor_type(value.type) for value in model.graph.input}
    static_types = {name: value_type for name, value_type in types.items() if value_type}
    if emitter is None or len(static_types) < len(types):
        return None
    params = {
        name: relax.Var(name, relax_type(static_type)) for name, static_type in static_types.items()
    }
    embedded = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    static_types |= {name: TensorType(v.shape, str(v.dtype)) for name, v in embedded.items()}
    values = params | {name: _const(value) for name, value in embedded.items()}
    result = emitter(
        Call(
            operands=[values.get(name) for name in node.input],
            constants=[embedded.get(name) for name in node.input],
            attributes=attributes_of(node),
            types=[static_types.get(name, TensorType((), "")) for name in node.input],
        )
    )
    return None if result is None else build(list(params.values()), result)


def _const(value: np.ndarray) -> relax.Expr:
    return relax.const(value, str(value.dtype))


def _chain(combine: Callable[..., relax.Expr]) -> Emitter:
    def emitter(call: Call) -> relax.Expr:
        result = call.operands[0]
        for operand in call.operands[1:]:
            result = combine(result, operand)
        return result

    return emitter


def _mean(call: Call) -> relax.Expr:
    total = _chain(relax.op.add)(call)
    return relax.op.divide(total, relax.const(float(len(call.operands)), call.types[0].dtype))


def _clip(call: Call) -> relax.Expr | None:
    result, dtype = call.operands[0], call.types[0].dtype
    low, high = (_bound(call, position, name) for position, name in ((1, "min"), (2, "max")))
    if isinstance(low, float) and isinstance(high, float):
        return relax.op.clip(result, low, high) if low <= high else None
    if low is not None:
        low = relax.const(low, dtype) if isinstance(low, float) else low
        result = relax.op.maximum(result, low)
    if high is not None:
        high = relax.const(high, dtype) if isinstance(high, float) else high
        result = relax.op.minimum(result, high)
    return result


def _bound(call: Call, position: int, name: str) -> float | relax.Expr | None:
    if name in call.attributes:
        return call.attributes.number(name, 0.0)
    constant = call.constant(position)
    if constant is not None and call.types[0].dtype.startswith("float"):
        return float(constant.reshape(()))
    return call.operand(position)


def _hard_sigmoid(call: Call) -> relax.Expr:
    dtype = call.types[0].dtype
    alpha = relax.const(call.attributes.number("alpha", 0.2), dtype)
    beta = relax.const(call.attributes.number("beta", 0.5), dtype)
    scaled = relax.op.add(relax.op.multiply(call.operands[0], alpha), beta)
    return relax.op.clip(scaled, 0, 1)


def _gelu(call: Call) -> relax.Expr:
    if call.attributes.text("approximate", "none") == "tanh":
        return relax.op.nn.gelu_tanh(call.operands[0])
    return relax.op.nn.gelu(call.operands[0])


def _pad(call: Call) -> relax.Expr | None:
    mode = call.attributes.text("mode", "constant")
    pads: Sequence[int] = call.attributes.integers("pads", ())
    if "pads" not in call.attributes:
        constant = call.constant(1)
        if constant is None or call.operand(3) is not None:
            return None
        pads = constant.tolist()
    rank = len(call.types[0].shape)
    value = call.constant(2)
    if min(pads) < 0 or (value is None and call.operand(2) is not None):
        return None
    fill = float(value.reshape(())) if value is not None else call.attributes.number("value", 0.0)
    if mode not in ("constant", "reflect"):
        return None
    widths = [int(pads[axis + side * rank]) for axis in range(rank) for side in (0, 1)]
    return relax.op.nn.pad(call.operands[0], widths, mode, fill)


def _tile(call: Call) -> relax.Expr | None:
    repeats = call.constant(1)
    return None if repeats is None else relax.op.tile(call.operands[0], repeats.tolist())


def _gather(call: Call) -> relax.Expr:
    """Select with a bounds check: TVM's own form reads beyond the buffer at a bad index."""
    axis = call.attributes.integer("axis", 0)
    places = _from_the_start(call, call.types[0].shape[axis])
    return relax.op.take(call.operands[0], places, axis, mode="clip")


def _gather_elements(call: Call) -> relax.Expr:
    axis = call.attributes.integer("axis", 0)
    places = _from_the_start(call, call.types[0].shape[axis])
    return relax.op.gather_elements(call.operands[0], places, axis)


def _from_the_start(call: Call, size: int) -> relax.Expr:
    """Return the indices, operand 1, with the negative ones counted from the start of an axis of `size`."""
    index, dtype = call.constant(1), call.types[1].dtype
    if index is not None:
        return _const(np.where(index < 0, index + size, index))
    places = call.operands[1]
    negative = relax.op.less(places, relax.const(0, dtype))
    return relax.op.where(negative, relax.op.add(places, relax.const(size, dtype)), places)


def _pow(call: Call) -> relax.Expr | None:
    """Write small integer powers as products: the rounding is equal, without a call of `pow`."""
    exponent = call.constant(1)
    if exponent is None or exponent.ndim or exponent not in (2, 3):
        return None
    base = call.operands[0]
    square = relax.op.multiply(base, base)
    return square if exponent == 2 else relax.op.multiply(square, base)


def _einsum(call: Call) -> relax.Expr:
    return relax.op.einsum(tuple(call.operands), call.attributes.text("equation", ""))


def _celu(call: Call) -> relax.Expr:
    data, alpha = call.operands[0], call.attributes.number("alpha", 1.0)
    scale, zero = relax.const(alpha, call.types[0].dtype), relax.const(0, call.types[0].dtype)
    below = relax.op.subtract(
        relax.op.exp(relax.op.divide(data, scale)), relax.const(1, call.types[0].dtype)
    )
    return relax.op.add(
        relax.op.maximum(data, zero), relax.op.minimum(relax.op.multiply(scale, below), zero)
    )


def _thresholded_relu(call: Call) -> relax.Expr:
    """Select: TVM multiplies with the comparison, which makes NaN of an infinity below the threshold."""
    data, dtype = call.operands[0], call.types[0].dtype
    above = relax.op.greater(data, relax.const(call.attributes.number("alpha", 1.0), dtype))
    return relax.op.where(above, data, relax.const(0, dtype))


def _same(call: Call) -> relax.Expr:
    return call.operands[0]


def _dropout(call: Call) -> relax.Expr | None:
    training = call.constant(2)
    if call.operand(2) is not None and (training is None or training.any()):
        return None
    return call.operands[0]


_EMITTERS: Mapping[str, Emitter] = {
    "Clip": _clip,
    "Sum": _chain(relax.op.add),
    "Max": _chain(relax.op.maximum),
    "Min": _chain(relax.op.minimum),
    "Mean": _mean,
    "HardSigmoid": _hard_sigmoid,
    "Celu": _celu,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "ThresholdedRelu": _thresholded_relu,
    "Gelu": _gelu,
    "Pow": _pow,
    "Pad": _pad,
    "Tile": _tile,
    "Identity": _same,
    "Dropout": _dropout,
}

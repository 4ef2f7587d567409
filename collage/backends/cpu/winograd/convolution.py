"""What a region computes, when it is one 3x3 convolution with the elementwise work after it.

    last(first(conv(x) + bias) + residual)

Both activations and the residual may be missing. `describe` reads this from the region's nodes or says
precisely what does not fit. The residual is any value of the same shape; it may be x itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from collage.backends.common.native_kernels import Activation, Kind
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices

NO_ACTIVATION = Activation()
GATES = {Kind.SIGMOID: Kind.SILU, Kind.HARD_SIGMOID: Kind.HARD_SWISH}
"""What `x * activation(x)` is called."""


@dataclass(frozen=True)
class Convolution:
    """A region that the kernel computes; `residual` is a value's name, "" for none."""

    node: Node
    pad_top: int
    pad_left: int
    first: Activation
    residual: str
    last: Activation


def describe(function: Function, nodes: IndexSet) -> Convolution:
    """Return what the region computes. Raises BackendError with the reason when it does not fit."""
    found = [i for i in indices(nodes) if function.graph.nodes[i].op == "Conv"]
    if len(found) != 1:
        raise BackendError(f"{len(found)} convolutions in one region: there must be one")
    if reason := refusal(function, found[0]):
        raise BackendError(reason)
    _, outputs = region_values(function, nodes)
    if len(outputs) != 1:
        raise BackendError("a value within the region is needed outside of it")
    node = function.graph.nodes[found[0]]
    top, left = padding(function.onnx_nodes[found[0]])
    walk = _Walk(function, nodes & ~(1 << found[0]), node.outputs[0])
    first = walk.activation()
    residual = walk.residual()
    last = walk.activation() if residual else NO_ACTIVATION
    if walk.rest:
        ops = ", ".join(function.graph.nodes[i].op for i in indices(walk.rest))
        raise BackendError(f"{ops} cannot be done together with this convolution")
    return Convolution(node, top, left, first, residual, last)


def refusal(function: Function, index: int) -> str | None:
    """Return why the node is no convolution for Winograd's algorithm, or None when it is one."""
    node, types = function.graph.nodes[index], function.graph.types
    if node.op != "Conv":
        return f"{node.op} is only taken right after a 3x3 convolution"
    for value in filter(None, (*node.inputs, *node.outputs)):
        if value not in types and value not in function.weights:
            return f"the shape of {value!r} depends on data"
    if types[node.inputs[0]].dtype != "float32":
        return f"the convolution computes in {types[node.inputs[0]].dtype}, not in float32"
    if any(value and value not in function.weights for value in node.inputs[1:]):
        return "weights or bias of the convolution are computed, not constant"
    shape = function.weights[node.inputs[1]].shape
    if shape[2:] != (3, 3):
        return f"the convolution's kernel is {'x'.join(map(str, shape[2:]))}, not 3x3"
    if min(types[node.outputs[0]].shape) < 1:
        return "the convolution's result is empty"
    return _refused_attribute(_attributes(function.onnx_nodes[index]))


def padding(node: onnx.NodeProto) -> tuple[int, int]:
    """Rows of zeros above and columns to the left; below and to the right they follow from the shape."""
    attributes = _attributes(node)
    if attributes.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
        return 1, 1
    top, left = list(attributes.get("pads", (0, 0)))[:2]
    return top, left


def _refused_attribute(attributes: Mapping[str, Any]) -> str | None:
    if attributes.get("group", 1) != 1:
        return f"the convolution has {attributes['group']} groups"
    for name in ("strides", "dilations"):
        values = attributes.get(name, [1, 1])
        if list(values) != [1, 1]:
            return f"the convolution's {name} are {values}, not [1, 1]"
    pads = attributes.get("pads", [0])
    if min(pads) < 0:
        return f"the convolution's pads are {pads}"
    return None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


class _Walk:
    """Follows a value through the nodes `rest`, taking off what it recognises."""

    def __init__(self, function: Function, rest: IndexSet, value: str) -> None:
        self._function = function
        self.rest = rest
        self._value = value

    def activation(self) -> Activation:
        """Take an activation of the value, if one follows."""
        readers = self._readers()
        gate = next((node for node in readers if node.op == "Mul"), None)
        inner = next((node for node in readers if node.op != "Mul"), None)
        if inner is None or len(readers) != (2 if gate else 1):
            return NO_ACTIVATION
        found = self._simple(inner)
        if found is None or inner.inputs[0] != self._value:
            return NO_ACTIVATION
        if gate is None:
            self._take(inner)
            return found
        if found.kind not in GATES or set(gate.inputs) != {self._value, inner.outputs[0]}:
            return NO_ACTIVATION
        self._take(inner, gate)
        return Activation(GATES[found.kind], found.a, found.b)

    def residual(self) -> str:
        """Take an addition of another value of the same type; return that value, "" for none."""
        readers = self._readers()
        if len(readers) != 1 or readers[0].op != "Add":
            return ""
        graph, node = self._function.graph, readers[0]
        other = node.inputs[0] if node.inputs[1] == self._value else node.inputs[1]
        made_inside = graph.producer.get(other, -1) >= 0 and self.rest >> graph.producer[other] & 1
        if other == self._value or made_inside or other in self._function.weights:
            return ""
        if graph.types.get(other) != graph.types[self._value]:
            return ""
        self._take(node)
        return other

    def _readers(self) -> list[Node]:
        graph = self._function.graph
        return [graph.nodes[i] for i in indices(graph.readers.get(self._value, 0) & self.rest)]

    def _take(self, *nodes: Node) -> None:
        for node in nodes:
            self.rest &= ~(1 << node.index)
        self._value = nodes[-1].outputs[0]

    def _simple(self, node: Node) -> Activation | None:
        attributes = _attributes(self._function.onnx_nodes[node.index])
        match node.op:
            case "Relu":
                return Activation(Kind.CLAMP, 0.0, np.inf)
            case "Clip":
                return self._clip(node, attributes)
            case "LeakyRelu":
                return Activation(Kind.LEAKY_RELU, _number(attributes, "alpha", 0.01))
            case "Sigmoid":
                return Activation(Kind.SIGMOID)
            case "HardSwish":
                return Activation(Kind.HARD_SWISH, 1 / 6, 0.5)
            case "HardSigmoid":
                alpha, beta = _number(attributes, "alpha", 0.2), _number(attributes, "beta", 0.5)
                return Activation(Kind.HARD_SIGMOID, alpha, beta)
        return None

    def _clip(self, node: Node, attributes: Mapping[str, Any]) -> Activation | None:
        bounds = [_number(attributes, "min", -np.inf), _number(attributes, "max", np.inf)]
        for position, value in enumerate(node.inputs[1:3]):
            if value and value not in self._function.weights:
                return None
            if value:
                bounds[position] = float(self._function.weights[value].reshape(()))
        return Activation(Kind.CLAMP, *bounds)


def _number(attributes: Mapping[str, Any], name: str, otherwise: float) -> float:
    return float(attributes.get(name, otherwise))

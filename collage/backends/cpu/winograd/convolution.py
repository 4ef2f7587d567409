"""Recognition of a 3x3 convolution with its epilogue.

    last(first(conv(x) + bias) + residual)

Both activations and the residual are optional. `describe` reads this form from the region's nodes or raises
with the reason. The residual is any value of the same shape, also x itself.
"""

from dataclasses import dataclass

import numpy as np

from collage.backends.common.native_kernels import Activation, ActivationKind, native_activation
from collage.backends.common.primitives.elementwise import UNARY
from collage.backends.common.primitives.node_view import NodeView
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import NodeAttributes, node_attributes
from collage.frontend.region import region_values
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices

NO_ACTIVATION = Activation()
ACTIVATION_OPS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish")
"""ONNX operators of the kernel's activations."""
GATES = {
    ActivationKind.SIGMOID: ActivationKind.SILU,
    ActivationKind.HARD_SIGMOID: ActivationKind.HARD_SWISH,
}
"""The kernel's name of `x * activation(x)`."""


@dataclass(frozen=True)
class WinogradConvolution:
    """A region of the kernel.

    Attributes:
        node: the convolution.
        pad_top: rows of zeros above.
        pad_left: columns of zeros to the left.
        first: activation before the residual.
        residual: name of the residual, "" for none.
        last: activation after the residual.
    """

    node: Node
    pad_top: int
    pad_left: int
    first: Activation
    residual: str
    last: Activation


def describe(function: Function, nodes: IndexSet) -> WinogradConvolution:
    """Return the convolution of a region. Raises BackendError with the reason where it does not fit."""
    convolutions = [i for i in indices(nodes) if function.graph.nodes[i].op == "Conv"]
    if len(convolutions) != 1:
        raise BackendError(f"{len(convolutions)} convolutions in one region: there must be one")
    if reason := refusal(function, convolutions[0]):
        raise BackendError(reason)
    _, outputs = region_values(function, nodes)
    if len(outputs) != 1:
        raise BackendError("a value within the region is needed outside of it")
    node = function.graph.nodes[convolutions[0]]
    pad_top, pad_left = padding(node_attributes(function, convolutions[0]))
    walk = _Walk(function, nodes & ~(1 << convolutions[0]), node.outputs[0])
    first = walk.activation()
    residual = walk.residual()
    last = walk.activation() if residual else NO_ACTIVATION
    if walk.remaining:
        ops = ", ".join(function.graph.nodes[i].op for i in indices(walk.remaining))
        raise BackendError(f"{ops} cannot be done together with this convolution")
    return WinogradConvolution(node, pad_top, pad_left, first, residual=residual, last=last)


def refusal(function: Function, index: int) -> str | None:
    """Return why Winograd's algorithm does not compute the node, None where it does."""
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
    return _refused_attribute(node_attributes(function, index))


def padding(attributes: NodeAttributes) -> tuple[int, int]:
    """Return the rows of zeros above and the columns of zeros to the left.

    Those below and to the right follow from the shapes.
    """
    if attributes.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return 1, 1
    rows, columns = attributes.integers("pads", (0, 0))[:2]
    return rows, columns


def _refused_attribute(attributes: NodeAttributes) -> str | None:
    if (groups := attributes.integer("group", 1)) != 1:
        return f"the convolution has {groups} groups"
    for name in ("strides", "dilations"):
        values = list(attributes.integers(name, (1, 1)))
        if values != [1, 1]:
            return f"the convolution's {name} are {values}, not [1, 1]"
    pads = list(attributes.integers("pads", (0,)))
    if min(pads) < 0:
        return f"the convolution's pads are {pads}"
    return None


class _Walk:
    """Follows a value through the nodes `remaining` and removes recognised ones."""

    def __init__(self, function: Function, remaining: IndexSet, value: str) -> None:
        self._function = function
        self.remaining = remaining
        self._value = value

    def activation(self) -> Activation:
        """Consume an activation of the value, if any."""
        readers = self._readers()
        gate = next((node for node in readers if node.op == "Mul"), None)
        inner = next((node for node in readers if node.op != "Mul"), None)
        if inner is None or len(readers) != (2 if gate else 1):
            return NO_ACTIVATION
        activation = self._simple(inner)
        if activation is None or inner.inputs[0] != self._value:
            return NO_ACTIVATION
        if gate is None:
            self._take(inner)
            return activation
        if activation.kind not in GATES or set(gate.inputs) != {self._value, inner.outputs[0]}:
            return NO_ACTIVATION
        self._take(inner, gate)
        return Activation(GATES[activation.kind], activation.a, activation.b)

    def residual(self) -> str:
        """Consume an addition of another value of the same type; return its name, "" for none."""
        readers = self._readers()
        if len(readers) != 1 or readers[0].op != "Add":
            return ""
        graph, node = self._function.graph, readers[0]
        operand = node.inputs[0] if node.inputs[1] == self._value else node.inputs[1]
        made_inside = (
            graph.producer.get(operand, -1) >= 0 and self.remaining >> graph.producer[operand] & 1
        )
        if operand == self._value or made_inside or operand in self._function.weights:
            return ""
        if graph.types.get(operand) != graph.types[self._value]:
            return ""
        self._take(node)
        return operand

    def _readers(self) -> list[Node]:
        graph = self._function.graph
        return [graph.nodes[i] for i in indices(graph.readers.get(self._value, 0) & self.remaining)]

    def _take(self, *nodes: Node) -> None:
        for node in nodes:
            self.remaining &= ~(1 << node.index)
        self._value = nodes[-1].outputs[0]

    def _simple(self, node: Node) -> Activation | None:
        if node.op == "Clip":
            return self._clip(node)
        if node.op in ACTIVATION_OPS:
            return native_activation(UNARY[node.op](NodeView(self._function, node.index)))
        return None

    def _clip(self, node: Node) -> Activation | None:
        attributes = node_attributes(self._function, node.index)
        bounds = [attributes.number("min", -np.inf), attributes.number("max", np.inf)]
        for position, value in enumerate(node.inputs[1:3]):
            if value and value not in self._function.weights:
                return None
            if value:
                bounds[position] = float(self._function.weights[value].reshape(()))
        return Activation(ActivationKind.CLAMP, *bounds)

"""BatchNormalization in training mode as plain arithmetic.

Such a node normalises with the statistics of its own batch and returns updated running statistics. Toolchains
run it in inference mode or not at all. ONNX Runtime is right without optimisations; with them it may share
the initialisers of scale and variance and write the running statistics into them, so that results drift from
run to run. As arithmetic (ReduceMean, Sub, Mul, ...) every toolchain computes it, and nothing keeps state.

The input is viewed as (batch, channel, all other dimensions), so its rank needs no knowledge.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.frontend.onnx_attributes import attributes_of
from collage.frontend.onnx_proto import STANDARD_DOMAINS, sub_graphs
from collage.frontend.training_dropout import HAS_CAST_LIKE

_AXES_ARE_INPUTS = 18
"""First operator set where ReduceMean takes its axes as an input."""


def lower_batch_statistics(model: onnx.ModelProto) -> bool:
    """Replace every BatchNormalization in training mode, in place; return whether there was one."""
    opset = max(
        (stamp.version for stamp in model.opset_import if stamp.domain in STANDARD_DOMAINS),
        default=1,
    )
    return _lower(model.graph, opset)


def _lower(graph: onnx.GraphProto, opset: int) -> bool:
    nodes: list[onnx.NodeProto] = []
    lowered = False
    for node in graph.node:
        for body in sub_graphs(node):
            lowered |= _lower(body, opset)
        if is_batch_statistics(node):
            nodes += _Arithmetic(node, opset).nodes()
            lowered = True
        else:
            nodes.append(node)
    if lowered:
        del graph.node[:]
        graph.node.extend(nodes)
    return lowered


def is_batch_statistics(node: onnx.NodeProto) -> bool:
    """Tell whether the node is a BatchNormalization in training mode."""
    return (
        node.op_type == "BatchNormalization"
        and node.domain in STANDARD_DOMAINS
        and attributes_of(node).integer("training_mode", 0) == 1
    )


class _Arithmetic:
    """The nodes that compute what one BatchNormalization does."""

    def __init__(self, node: onnx.NodeProto, opset: int) -> None:
        self._node, self._opset = node, opset
        self._prefix = f"{node.output[0]}/batch_statistics"
        self._nodes: list[onnx.NodeProto] = []

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes, in order."""
        x, scale, bias = self._node.input[:3]
        attributes = attributes_of(self._node)
        flat = self._add("Reshape", [x, self._constant(np.array([0, 0, -1]))])
        mean = self._mean(flat)
        centred = self._add("Sub", [flat, mean])
        variance = self._mean(self._add("Mul", [centred, centred]))
        epsilon = self._number(attributes.number("epsilon", 1e-5), like=x)
        deviation = self._add("Sqrt", [self._add("Add", [variance, epsilon])])
        normal = self._add("Div", [centred, deviation])
        scaled = self._add("Mul", [normal, self._by_channel(scale, like=x)])
        shifted = self._add("Add", [scaled, self._by_channel(bias, like=x)])
        self._add("Reshape", [shifted, self._add("Shape", [x])], self._node.output[0])
        momentum = attributes.number("momentum", 0.9)
        running = zip(self._node.output[1:3], self._node.input[3:5], (mean, variance), strict=False)
        for output, before, current in running:
            if output:
                self._running(output, before, current, momentum=momentum)
        return self._nodes

    def _running(self, output: str, before: str, current: str, *, momentum: float) -> None:
        batch = self._like(self._add("Reshape", [current, self._constant(np.array([-1]))]), before)
        kept = self._add("Mul", [before, self._number(momentum, like=before)])
        added = self._add("Mul", [batch, self._number(1 - momentum, like=before)])
        self._add("Add", [kept, added], output)

    def _mean(self, value: str) -> str:
        if self._opset >= _AXES_ARE_INPUTS:
            return self._add("ReduceMean", [value, self._constant(np.array([0, 2]))], keepdims=1)
        return self._add("ReduceMean", [value], axes=[0, 2], keepdims=1)

    def _by_channel(self, value: str, *, like: str) -> str:
        shape = self._constant(np.array([1, -1, 1]))
        return self._add("Reshape", [self._like(value, like), shape])

    def _number(self, value: float, *, like: str) -> str:
        return self._like(self._constant(np.array(value, np.float32)), like)

    def _like(self, value: str, like: str) -> str:
        """Convert to the type of another value; before CastLike all types of the operator are equal."""
        if self._opset < HAS_CAST_LIKE:
            return value
        return self._add("CastLike", [value, like])

    def _constant(self, value: np.ndarray) -> str:
        return self._add("Constant", [], value=numpy_helper.from_array(value))

    def _add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: object) -> str:
        output = output or f"{self._prefix}/{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

"""Quantisation steps of a region's outputs, where the graph states them.

Small integers have the step 1. What DequantizeLinear computes with a constant scale has the step of its
scale: one number, or one for each channel. A region that does not round has exact outputs and no steps.
"""

from collections.abc import Sequence

import numpy as np

from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.index_set import IndexSet
from collage.graph.quantisation import DEQUANTIZE, is_quantised
from collage.runtime.arrays import numpy_dtype
from collage.runtime.tolerances import integer_step

_AXIS = 1
"""Default axis of the channels."""


def output_steps(
    function: Function, nodes: IndexSet, outputs: Sequence[str]
) -> dict[int, np.ndarray]:
    """Return the steps by position of the output; outputs without a stated step are missing."""
    if not is_quantised(function.graph, nodes):
        return {}
    steps = {position: _step(function, name) for position, name in enumerate(outputs)}
    return {position: step for position, step in steps.items() if step is not None}


def _step(function: Function, value: str) -> np.ndarray | None:
    tensor = function.graph.types.get(value)
    if tensor is None:
        return None
    if integer_step(numpy_dtype(tensor.dtype), quantised=True):
        return np.ones(())
    producer = next((node for node in function.graph.nodes if value in node.outputs), None)
    if producer is None or producer.op != DEQUANTIZE:
        return None
    scale = function.weights.get(function.onnx_nodes[producer.index].input[1])
    attributes = node_attributes(function, producer.index)
    if scale is None or attributes.integer("block_size", 0):
        return None
    step = np.abs(scale.astype(np.float64))
    if not (step > 0).all():
        return None
    if step.size == 1:
        return step.reshape(())
    axis = attributes.integer("axis", _AXIS) % len(tensor.shape)
    return step.reshape([-1 if place == axis else 1 for place in range(len(tensor.shape))])

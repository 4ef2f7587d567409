"""Reference values of a body of control flow, in a child process: one turn on the caller's values.

The turn is the first one, whether or not the caller's reference run took it: initial carried values, first
slices, captured values. A body that refuses these values is a body that cannot be measured.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage.errors import ModelError
from collage.frontend import Function
from collage.frontend.inputs import load_reference, reference_values, save_reference
from collage.frontend.isolated_import import run_allowance
from collage.frontend.limited_process import Question, answer_limited, ask_limited
from collage.frontend.load_function import load_function
from collage.frontend.model import Body
from collage.frontend.onnx_attributes import NodeAttributes, attributes_of

_INPUTS = "inputs"


def save_body_reference(
    model_path: Path, caller: Function, body: Body, reference_dir: Path, *, work_dir: Path
) -> Path:
    """Run one turn of a body and save all its values.

    Args:
        model_path: path of the model, for messages.
        caller: function with the node.
        body: the body.
        reference_dir: folder of the caller's reference values.
        work_dir: folder for the body's values.

    Returns:
        the folder of the values.

    Raises:
        ModelError: ONNX Runtime does not run the body on these values, or not within the limits.
    """
    function = body.function
    folder = work_dir / f"reference-{function.name}"
    values = {**load_reference(reference_dir), **caller.weights}
    save_reference(turn_inputs(caller, body, values), folder / _INPUTS)
    question = {
        "path": os.path.abspath(model_path),
        "simplified": str(function.simplified.resolve()),
        "function": function.name,
        "folder": str(folder.resolve()),
    }
    allowance = run_allowance(model_path, function)
    ask_limited(__name__, question, allowance, model_path, folder=work_dir)
    return folder


def turn_inputs(
    caller: Function, body: Body, values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the inputs of the body's first turn, by name.

    Args:
        caller: function with the node.
        body: the body.
        values: values of the caller, with its weights.

    Raises:
        ModelError: a value of the caller is not known.
    """
    node = caller.onnx_nodes[body.node]
    graph = next(item.g for item in node.attribute if item.name == body.attribute)
    names = body.function.graph.inputs
    own = len(graph.input)
    try:
        operands = [values[name] if name else None for name in node.input]
        captured = {name: np.array(values[name]) for name in names[own:]}
    except KeyError as error:
        raise ModelError(f"the value {error} has no reference") from error
    types = body.function.graph.types
    turn = _turn(node, operands)
    assert len(turn) == own, "the importer has checked the number of inputs"
    first = {
        name: np.array(value, types[name].dtype).reshape(types[name].shape)
        for name, value in zip(names[:own], turn, strict=True)
    }
    return {**first, **captured}


def _turn(node: onnx.NodeProto, operands: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    if node.op_type == "If":
        return []
    if node.op_type == "Loop":
        states = [value for value in operands[2:] if value is not None]
        return [np.array(0), np.array(True), *states]
    attributes = attributes_of(node)
    arrays = [value for value in operands if value is not None]
    count = attributes.integer("num_scan_inputs", 0)
    first = len(arrays) - count
    return [*arrays[:first], *_slices(attributes, arrays[first:])]


def _slices(attributes: NodeAttributes, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the first slice of each input of a Scan; zeros of an input without slices."""
    axes = attributes.integers("scan_input_axes", ()) or (0,) * len(arrays)
    directions = attributes.integers("scan_input_directions", ()) or (0,) * len(arrays)
    slices = []
    for array, axis, direction in zip(arrays, axes, directions, strict=True):
        if array.shape[axis]:
            slices.append(np.take(array, -1 if direction else 0, axis))
        else:
            slices.append(np.zeros(np.delete(array.shape, axis), array.dtype))
    return slices


def _answer(question: Question) -> Mapping[str, Any]:
    """Run the body, in the child."""
    folder = Path(question["folder"])
    function = load_function(Path(question["simplified"]), question["function"])
    inputs = {name: np.array(value) for name, value in load_reference(folder / _INPUTS).items()}
    save_reference(reference_values(function, inputs), folder)
    return {}


if __name__ == "__main__":
    answer_limited(_answer)

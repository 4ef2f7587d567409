"""Seeded inputs of a function, and reference values of all its tensors on these inputs.

Random inputs must be valid: an index lies within its axis (a native kernel would read beyond the buffer),
a mask hides not everything (the result would be NaN), and a sequence length fits. The consumers of an
integer input determine its range; if the model still refuses, smaller integers are tried.

The reference is one unoptimised run of ONNX Runtime with every value as an output. Each value is one
`.npy` file, so that all workers map the same pages.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from collage.errors import ModelError
from collage.frontend.float16 import retyped, retyped_array
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import attributes_of
from collage.frontend.onnxruntime_session import first_line, is_out_of_memory, session_options
from collage.frontend.region import region_onnx
from collage.graph.dataflow import TensorType
from collage.masking import mask_numbers

logger = logging.getLogger(__name__)

BFLOAT16, FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT

_DEFAULT_LIMIT = 8
_CARRIES_INTEGERS = frozenset({
    "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Flatten", "Expand", "Slice",
    "Concat", "Split", "Tile", "Pad", "Gather", "Clip", "Where", "Max",
})  # fmt: skip
_SEQUENCES = frozenset({"LSTM", "GRU", "RNN"})
_SHARED_WEIGHT_BYTES = 1024


def input_sets(function: Function, seed: int) -> list[dict[str, np.ndarray]]:
    """Return the function's sets of inputs: the user's, completed, else one generated set."""
    if not function.sample_sets:
        return [random_inputs(function, seed)]
    return [complete_inputs(function, arrays, seed) for arrays in function.sample_sets]


def more_inputs(function: Function, seeds: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """Return further sets of inputs: the user's values with other generated ones beside them.

    The result is empty where the user gave the values of all inputs.
    """
    user_sets = function.sample_sets or ({},)
    if all(name in user_sets[0] or name in function.settings for name in function.graph.inputs):
        return []
    return [
        complete_inputs(function, user_sets[number % len(user_sets)], seed)
        for number, seed in enumerate(seeds)
    ]


def random_inputs(function: Function, seed: int) -> dict[str, np.ndarray]:
    """Draw valid inputs by name: floats normal, integers in range, booleans even, masks of ones."""
    return complete_inputs(function, {}, seed)


def complete_inputs(
    function: Function, values: Mapping[str, np.ndarray], seed: int
) -> dict[str, np.ndarray]:
    """Draw valid values for all inputs without a value, in the function's order.

    Args:
        function: an imported function; its settings hold too.
        values: values by input name.
        seed: seed of the drawn values.
    """
    fixed = {**values, **function.settings}
    limits = {name: _limit(function, name) for name in function.graph.inputs}
    first = {**_draw(function, limits, seed), **fixed}
    if not any(v.dtype.kind in "iu" for name, v in first.items() if name not in fixed):
        return first
    running: onnxruntime.InferenceSession | None = None
    for limit in (None, 2, 1):
        capped = {name: min(own, limit or own) for name, own in limits.items()}
        candidate_inputs = {**_draw(function, capped, seed), **fixed}
        running = running or _session(function, every_value=False)
        try:
            running.run(None, candidate_inputs)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions share no base class
            # These integers exceed a range unknown to the rules of `_bounds`: try smaller ones.
            logger.debug(
                "integer inputs below %s refused: %s", limit or "limits", first_line(error)
            )
            continue
        return candidate_inputs
    return first


def _draw(function: Function, limits: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    types = function.graph.types
    return {
        name: _random(name, types[name], limits[name], generator) for name in function.graph.inputs
    }


def _random(
    name: str, tensor: TensorType, limit: int, generator: np.random.Generator
) -> np.ndarray:
    if tensor.dtype == "bool":
        return generator.integers(0, 2, tensor.shape).astype(np.bool_)
    if tensor.dtype in ("int8", "uint8"):
        bounds = np.iinfo(tensor.dtype)
        return generator.integers(bounds.min, bounds.max + 1, tensor.shape).astype(tensor.dtype)
    if tensor.dtype.startswith(("int", "uint")):
        if "mask" in name.lower():
            return np.ones(tensor.shape, tensor.dtype)
        return generator.integers(0, max(limit, 1), tensor.shape).astype(tensor.dtype)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    drawn = generator.standard_normal(tensor.shape, dtype=np.float32)
    return drawn.astype(dtype if tensor.dtype == "bfloat16" else tensor.dtype)


def _limit(function: Function, name: str) -> int:
    """Return the smallest exclusive bound from the uses of an integer input."""
    bounds = list(_bounds(function, name))
    return min(bounds) if bounds else _DEFAULT_LIMIT


def _bounds(function: Function, name: str) -> Iterator[int]:
    reached = {name}
    types = function.graph.types
    for node, proto in zip(function.graph.nodes, function.onnx_nodes, strict=True):
        places = [n for n, operand in enumerate(node.inputs) if operand in reached]
        if not places:
            continue
        shapes = [types[value].shape if value in types else () for value in node.inputs]
        if node.op in ("Gather", "GatherElements") and 1 in places and shapes[0]:
            yield shapes[0][attributes_of(proto).integer("axis", 0)]
        elif node.op == "GatherND" and 1 in places and shapes[0] and shapes[1]:
            yield min(shapes[0][: shapes[1][-1]])
        elif node.op in ("ScatterND", "ScatterElements") and 1 in places and shapes[0]:
            yield min(shapes[0])
        elif node.op == "OneHot" and 0 in places and node.inputs[1] in function.weights:
            yield int(function.weights[node.inputs[1]].reshape(-1)[0])
        elif node.op in _SEQUENCES and 4 in places and shapes[0]:
            yield shapes[0][0] + 1
        elif node.op in _CARRIES_INTEGERS:
            reached.update(node.outputs)


def reference_values(function: Function, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return every value of the function on `inputs`, with the inputs, without weights.

    A function in bfloat16 is computed in float32 and rounded: a CPU has no kernels for bfloat16.

    Raises:
        ModelError: ONNX Runtime cannot run the function on these inputs.
    """
    with run_explained(function):
        running = _session(function, every_value=True)
        names = [value.name for value in running.get_outputs()]
        feed = {name: retyped_array(value, BFLOAT16, FLOAT) for name, value in inputs.items()}
        results = running.run(names, feed)
    values = dict(inputs)
    for name, value in zip(names, results, strict=True):
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
            rounds = name in function.graph.types and function.type_of(name).dtype == "bfloat16"
            values[name] = retyped_array(value, FLOAT, BFLOAT16) if rounds else value
    return values


@contextmanager
def run_explained(function: Function) -> Iterator[None]:
    """Turn errors of ONNX Runtime on a function's inputs into MemoryError or ModelError."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        if is_out_of_memory(error):
            raise MemoryError(first_line(error)) from error
        if function.sample_sets:
            raise ModelError(
                f"ONNX Runtime cannot run the model on the samples: {mask_numbers(first_line(error))}"
                "; give inputs that it accepts"
            ) from error
        raise ModelError(
            f"ONNX Runtime cannot run the model on generated inputs: {first_line(error)}"
        ) from error


def _session(function: Function, every_value: bool) -> onnxruntime.InferenceSession:
    every = [value for node in function.graph.nodes for value in node.outputs]
    return open_unoptimised(function, every if every_value else [])


def open_unoptimised(
    function: Function,
    extra_outputs: Sequence[str],
    change: Callable[[onnx.GraphProto], None] = lambda graph: None,
) -> onnxruntime.InferenceSession:
    """Open an unoptimised session; large weights are shared, not copied through a protobuf.

    Args:
        function: an imported function.
        extra_outputs: values to return before the function's outputs, in this order.
        change: edit of the graph, with inputs and outputs but without weights; none by default.
    """
    all_nodes = (1 << len(function.graph)) - 1
    model = retyped(region_onnx(function, all_nodes, weights_as_inputs=True), BFLOAT16, FLOAT)
    graph = model.graph
    outputs = dict.fromkeys((*extra_outputs, *function.graph.outputs))
    del graph.output[:], graph.input[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    for name in function.graph.inputs:
        graph.input.append(onnx.helper.make_value_info(name, function.value_types[name]))
        if graph.input[-1].type.tensor_type.elem_type == BFLOAT16:
            graph.input[-1].type.tensor_type.elem_type = FLOAT
    change(graph)
    options = session_options("ORT_DISABLE_ALL")
    external = {}
    for name, weight in function.weights.items():
        value = retyped_array(weight, BFLOAT16, FLOAT)
        if value.nbytes > _SHARED_WEIGHT_BYTES and value.dtype.isbuiltin == 1:
            graph.initializer.append(_external(name, value))
            external[name] = onnxruntime.OrtValue.ortvalue_from_numpy(value)
        else:
            graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    options.add_external_initializers(list(external), list(external.values()))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _external(name: str, value: np.ndarray) -> onnx.TensorProto:
    number = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor = onnx.TensorProto(name=name, dims=value.shape, data_type=number)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="in-memory")
    return tensor


def save_reference(values: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the values, one file each, and last their index."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    for position, (name, value) in enumerate(values.items()):
        file = f"{position}.npy"
        builtin = value.dtype.isbuiltin == 1
        np.save(folder / file, value if builtin else value.view(f"u{value.dtype.itemsize}"))
        index[name] = [file, str(value.dtype)]
    (folder / "index.json").write_text(json.dumps(index))


def load_reference(folder: Path) -> dict[str, np.ndarray]:
    """Map the values of `save_reference`, read-only."""
    index = json.loads((folder / "index.json").read_text())
    return {name: _map(folder / file, dtype) for name, (file, dtype) in index.items()}


def _map(file: Path, dtype: str) -> np.ndarray:
    value: np.ndarray = np.load(file, mmap_mode="r")
    if str(value.dtype) == dtype:
        return value
    return value.view(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))

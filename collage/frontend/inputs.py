"""Seeded inputs of a function, and the reference: every value of the function on them.

Inputs must be valid before they can be random: an index must lie within the axis that it selects from
(a native kernel reads beyond the buffer otherwise), a mask that hides everything makes NaN, and
a sequence length must fit. Ranges are deduced from what an integer input flows into; where the model
still refuses, smaller integers are tried.

The reference is one unoptimised run of ONNX Runtime with every value as an output. It is written as
one `.npy` file a value, so that all workers map the same pages.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from collage.errors import ModelError
from collage.frontend.float16 import retyped, retyped_array
from collage.frontend.fold import first_line, is_out_of_memory, session_options
from collage.frontend.model import Function
from collage.frontend.region import region_onnx
from collage.graph.dataflow import TensorType

BFLOAT16, FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT

_DEFAULT_LIMIT = 8
_CARRIES_INTEGERS = frozenset({
    "Cast", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Flatten", "Expand", "Slice",
    "Concat", "Split", "Tile", "Pad", "Gather", "Clip", "Where", "Max",
})  # fmt: skip
_SEQUENCES = frozenset({"LSTM", "GRU", "RNN"})
_LARGE_BYTES = 1024


def random_inputs(function: Function, seed: int) -> dict[str, np.ndarray]:
    """Draw valid inputs by name: floats normal, integers in range, booleans even, masks of ones."""
    limits = {name: _limit(function, name) for name in function.graph.inputs}
    first = _draw(function, limits, seed)
    if not any(value.dtype.kind in "iu" for value in first.values()):
        return first
    running: onnxruntime.InferenceSession | None = None
    for limit in (None, 2, 1):
        capped = {name: min(own, limit or own) for name, own in limits.items()}
        found = _draw(function, capped, seed)
        running = running or _session(function, every_value=False)
        try:
            running.run(None, found)
        except Exception:
            # These integers are out of some range that no rule here knows: try smaller ones.
            continue
        return found
    return first


def _draw(function: Function, limits: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    types = function.graph.types
    return {
        name: _random(name, types[name], limits[name], generator) for name in function.graph.inputs
    }


def _random(
    name: str, wanted: TensorType, limit: int, generator: np.random.Generator
) -> np.ndarray:
    if wanted.dtype == "bool":
        return generator.integers(0, 2, wanted.shape).astype(np.bool_)
    if wanted.dtype in ("int8", "uint8"):
        bounds = np.iinfo(wanted.dtype)
        return generator.integers(bounds.min, bounds.max + 1, wanted.shape).astype(wanted.dtype)
    if wanted.dtype.startswith(("int", "uint")):
        if "mask" in name.lower():
            return np.ones(wanted.shape, wanted.dtype)
        return generator.integers(0, max(limit, 1), wanted.shape).astype(wanted.dtype)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    drawn = generator.standard_normal(wanted.shape, dtype=np.float32)
    return drawn.astype(dtype if wanted.dtype == "bfloat16" else wanted.dtype)


def _limit(function: Function, name: str) -> int:
    """Return the least bound (exclusive) that the uses of an integer input set."""
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
        axis = next((item.i for item in proto.attribute if item.name == "axis"), 0)
        if node.op in ("Gather", "GatherElements") and 1 in places and shapes[0]:
            yield shapes[0][axis]
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
    """Return every value of the function on `inputs`, the inputs included, weights left out.

    A function in bfloat16, for which a CPU has no kernels, is computed in float32 and then rounded.

    Raises:
        ModelError: ONNX Runtime cannot run the function on these inputs.
    """
    with run_explained():
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
def run_explained() -> Iterator[None]:
    """Raise what ONNX Runtime raises in a run on generated inputs as MemoryError or ModelError."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's share no base class
        if is_out_of_memory(error):
            raise MemoryError(first_line(error)) from error
        raise ModelError(
            f"ONNX Runtime cannot run the model on generated inputs: {first_line(error)}"
        ) from error


def _session(function: Function, every_value: bool) -> onnxruntime.InferenceSession:
    every = [value for node in function.graph.nodes for value in node.outputs]
    return open_unoptimised(function, every if every_value else [])


def open_unoptimised(
    function: Function,
    more: Sequence[str],
    change: Callable[[onnx.GraphProto], None] = lambda graph: None,
) -> onnxruntime.InferenceSession:
    """Open the function as it stands, its large weights shared and not copied through a protobuf.

    Args:
        function: an imported function.
        more: values that are outputs too; where there are any, in this order and before all others.
        change: made to the graph, which has its inputs and outputs by then, and no weights.
    """
    whole = (1 << len(function.graph)) - 1
    model = retyped(region_onnx(function, whole, weights_as_inputs=True), BFLOAT16, FLOAT)
    graph = model.graph
    wanted = dict.fromkeys((*more, *function.graph.outputs))
    del graph.output[:], graph.input[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    for name in function.graph.inputs:
        graph.input.append(onnx.helper.make_value_info(name, function.value_types[name]))
        if graph.input[-1].type.tensor_type.elem_type == BFLOAT16:
            graph.input[-1].type.tensor_type.elem_type = FLOAT
    change(graph)
    options = session_options("ORT_DISABLE_ALL")
    external = {}
    for name, kept in function.weights.items():
        value = retyped_array(kept, BFLOAT16, FLOAT)
        if value.nbytes > _LARGE_BYTES and value.dtype.isbuiltin == 1:
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
    """Write values, one file each, and the index that names them last."""
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    for position, (name, value) in enumerate(values.items()):
        file = f"{position}.npy"
        builtin = value.dtype.isbuiltin == 1
        np.save(folder / file, value if builtin else value.view(f"u{value.dtype.itemsize}"))
        index[name] = [file, str(value.dtype)]
    (folder / "index.json").write_text(json.dumps(index))


def load_reference(folder: Path) -> dict[str, np.ndarray]:
    """Map the values that `save_reference` wrote, read-only."""
    index = json.loads((folder / "index.json").read_text())
    return {name: _map(folder / file, dtype) for name, (file, dtype) in index.items()}


def _map(file: Path, dtype: str) -> np.ndarray:
    value = np.load(file, mmap_mode="r")
    if str(value.dtype) == dtype:
        return value
    return value.view(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))

"""Seeded inputs of a function, and reference values of all its tensors on these inputs.

Generated inputs must be valid: an index lies within its axis (a native kernel would read beyond the buffer),
a mask hides not everything (the result would be NaN), and a sequence length fits. The graph states ranges
(`input_ranges`); if the model still refuses, other choices, smaller integers and inverted masks are tried.

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
from collage.frontend.float16 import retyped_array, widened
from collage.frontend.input_drawing import draw_inputs, variants
from collage.frontend.input_ranges import input_range
from collage.frontend.model import Function
from collage.frontend.onnxruntime_session import first_line, is_out_of_memory, session_options
from collage.frontend.region import region_onnx
from collage.graph.index_set import IndexSet, indices
from collage.masking import mask_numbers

logger = logging.getLogger(__name__)

BFLOAT16, FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT

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

    Raises:
        ModelError: an input is a setting (a target shape, sizes, axes), and has no value.
    """
    fixed = {**values, **function.settings}
    drawn = [name for name in function.graph.inputs if name not in fixed]
    ranges = {name: input_range(function, name) for name in drawn}
    for name, stated in ranges.items():
        if stated.setting and function.graph.types[name].dtype != "bool":
            raise ModelError(_needs_a_value(function, name, stated.setting))
    first = draw_inputs(function, ranges, seed, fixed=fixed)
    if not any(first[name].dtype.kind in "iub" for name in drawn):
        return first
    running = _session(function, every_value=False)
    accepted: dict[str, np.ndarray] | None = None
    for variant in variants(ranges):
        candidate_inputs = draw_inputs(function, ranges, seed, fixed=fixed, variant=variant)
        try:
            outputs = running.run(None, candidate_inputs)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions share no base class
            # These integers exceed a range that no operator states: try other ones.
            logger.debug("inputs %s refused: %s", variant, mask_numbers(first_line(error)))
            continue
        if not _hides_everything(outputs):
            return candidate_inputs
        accepted = accepted or candidate_inputs
    return accepted or first


def _hides_everything(outputs: Sequence[object]) -> bool:
    """Tell whether an output is NaN as a whole: a mask that hides everything makes it so."""
    return any(
        isinstance(value, np.ndarray)
        and value.size
        and value.dtype.kind == "f"
        and np.isnan(value).all()
        for value in outputs
    )


def _needs_a_value(function: Function, name: str, setting: str) -> str:
    return (
        f"the input {name} ({_written_type(function, name)}) is a setting of {setting}, which no "
        f"generated value fits; give it with --input {name}=VALUE, or real inputs with --samples PATH"
    )


def _written_type(function: Function, name: str) -> str:
    tensor = function.graph.types[name]
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


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
            rounds = function.type_of(name).dtype == "bfloat16"
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
            f"ONNX Runtime cannot run the model on generated inputs: {first_line(error)}; "
            + _advice(function, str(error))
        ) from error


def _advice(function: Function, message: str) -> str:
    """Name the inputs that the refusing operator depends on, and the options that give them values."""
    failing = next(
        (node for node in function.graph.nodes if node.name and f"'{node.name}'" in message), None
    )
    above = ancestors(function, failing.index) if failing else function.graph.everything
    read = {value for index in indices(above) for value in function.graph.nodes[index].inputs}
    generated = [name for name in function.graph.inputs if name not in function.settings]
    suspects = [name for name in generated if name in read] or generated
    integers = [
        n for n in suspects if not function.graph.types[n].dtype.startswith(("float", "bf"))
    ]
    named = integers or suspects
    listed = ", ".join(f"{name} ({_written_type(function, name)})" for name in named)
    options = " ".join(f"--input {name}=VALUE" for name in named)
    return f"it depends on {listed}: add {options}, or real inputs with --samples PATH"


def ancestors(function: Function, index: int) -> IndexSet:
    """Return a node and all nodes that it depends on."""
    above = IndexSet(1 << index)
    frontier = above
    while frontier:
        reached = 0
        for node in indices(frontier):
            reached |= function.graph.predecessors[node]
        frontier = IndexSet(reached & ~above)
        above = IndexSet(above | frontier)
    return above


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
    model = widened(region_onnx(function, all_nodes, weights_as_inputs=True))
    graph = model.graph
    outputs = dict.fromkeys((*extra_outputs, *function.graph.outputs))
    del graph.output[:], graph.input[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    for name in function.graph.inputs:
        graph.input.append(onnx.helper.make_value_info(name, function.value_types[name]))
        if graph.input[-1].type.tensor_type.elem_type == BFLOAT16:
            graph.input[-1].type.tensor_type.elem_type = FLOAT
    change(graph)
    return open_model(model, function.weights)


def open_model(
    model: onnx.ModelProto, weights: Mapping[str, np.ndarray]
) -> onnxruntime.InferenceSession:
    """Open an unoptimised session of a model without its weights; large ones are shared."""
    options = session_options("ORT_DISABLE_ALL")
    external = {}
    for name, weight in weights.items():
        value = retyped_array(weight, BFLOAT16, FLOAT)
        if value.nbytes > _SHARED_WEIGHT_BYTES and value.dtype.isbuiltin == 1:
            model.graph.initializer.append(_external(name, value))
            external[name] = onnxruntime.OrtValue.ortvalue_from_numpy(value)
        else:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
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

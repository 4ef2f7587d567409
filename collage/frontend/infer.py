"""Types of all values: by ONNX's inference, else by observation of one run.

ONNX's inference does not know every operator. One run shows the types of open values. A data-dependent
shape (`NonZero`, a `Reshape` to a computed shape, ...) is an exception: one run proves nothing, so the
value, and everything unresolved behind it, stays without a shape.
"""

import logging
from collections.abc import Mapping, Set
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from collage.frontend.fold import save_model
from collage.frontend.onnx_proto import ELEMENT_TYPES, sub_graphs, tensor_type, type_proto
from collage.frontend.onnxruntime_session import first_line, is_out_of_memory, session
from collage.frontend.onnxruntime_types import runtime_type
from collage.graph.dataflow import TensorType

logger = logging.getLogger(__name__)

_SMALL_TENSOR_ELEMENTS = 1024
_NOTHING = onnx.TypeProto()
_DATA_DEPENDENT = frozenset({
    "NonZero", "Unique", "Compress", "NonMaxSuppression", "If", "Loop", "Scan", "Range",
    "ConstantOfShape", "TopK", "Reshape", "Expand", "Slice", "Tile", "Resize", "Upsample", "OneHot",
    "Pad", "Split", "Squeeze", "Unsqueeze", "SequenceAt", "ConcatFromSequence", "StringSplit",
    "AffineGrid", "CenterCropPad", "Col2Im", "MaxUnpool", "RandomNormalLike", "STFT", "DFT",
    "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "ImageDecoder", "ExpandDims",
    "CropAndResize", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch",
    "DynamicTimeWarping", "SplitToSequence",
})  # fmt: skip


def infer_types(
    model: onnx.ModelProto, work_dir: Path, known_types: Mapping[str, onnx.TypeProto] | None = None
) -> dict[str, onnx.TypeProto]:
    """Return the types of all values; a data-dependent shape is absent from its type.

    Args:
        model: the model.
        work_dir: folder for temporary files.
        known_types: types of some values from another source; default none.
    """
    types = inferred_types(model, known_types)
    types |= {name: value for name, value in (known_types or {}).items() if tensor_type(value)}
    if _unresolved(model, types):
        types = _with_observed(model, types, _observe(model, types, work_dir))
    untyped = {
        value.name
        for value in model.graph.output
        if not types.get(value.name, _NOTHING).WhichOneof("value")
    }
    if untyped:
        asked = _runtime_types(model, work_dir)
        types |= {name: value for name, value in asked.items() if name in untyped}
    return types


def _with_observed(
    model: onnx.ModelProto, types: dict[str, onnx.TypeProto], observed: Mapping[str, TensorType]
) -> dict[str, onnx.TypeProto]:
    """Fill open types from a run, and infer anew, until no open value gets a type.

    An observed type opens the way for the inference of a Reshape behind it, and so for the next
    operator that ONNX's inference does not know.
    """
    while names := _unresolved(model, types) & observed.keys():
        types = types | {name: type_proto(observed[name]) for name in names}
        for name, inferred in inferred_types(model, types).items():
            if name not in types or not tensor_type(types[name]):
                types[name] = inferred
    return types


def _runtime_types(model: onnx.ModelProto, work_dir: Path) -> dict[str, onnx.TypeProto]:
    """Return the outputs' types from ONNX Runtime, without their possibly data-dependent shapes."""
    with TemporaryDirectory(dir=work_dir) as folder:
        save_model(model, Path(folder) / "probe.onnx")
        outputs = session(Path(folder) / "probe.onnx").get_outputs()
    return {value.name: runtime_type(value.type) for value in outputs}


def inferred_types(
    model: onnx.ModelProto, known_types: Mapping[str, onnx.TypeProto] | None = None
) -> dict[str, onnx.TypeProto]:
    """Return the types that ONNX's inference finds, and those of the weights.

    Args:
        model: model; what is invalid in it stays without types.
        known_types: types of some values from another source; default none.
    """
    light = _without_large_weights(model)
    for name, value in (known_types or {}).items():
        light.graph.value_info.append(onnx.helper.make_value_info(name, value))
    try:
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.debug("shape inference without the propagation of data: %s", first_line(error))
        light = onnx.shape_inference.infer_shapes(light)
    graph = light.graph
    stated_outputs = [value for value in graph.output if value.type.WhichOneof("value")]
    types = {value.name: value.type for value in (*graph.value_info, *stated_outputs, *graph.input)}
    for tensor in model.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _without_large_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy `model` with large weights as inputs: inference needs their types only."""
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = "light"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if np.prod(tensor.dims) <= _SMALL_TENSOR_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            value = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            graph.input.append(onnx.helper.make_value_info(tensor.name, value))
    return light


def _unresolved(model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto]) -> set[str]:
    """Return values with an open shape that is not data-dependent."""
    resolved = {name for name, value in types.items() if tensor_type(value)}
    constants = {tensor.name for tensor in model.graph.initializer}
    unresolved: set[str] = set()
    for node in model.graph.node:
        outputs = {name for name in node.output if name and name not in resolved}
        reads = {name for name in node.input if name}
        free = not _depends_on_data(node, constants)
        if outputs and free and reads <= resolved | unresolved:
            unresolved |= outputs
    return unresolved


def _depends_on_data(node: onnx.NodeProto, constants: Set[str]) -> bool:
    """Tell whether the shape of the node's outputs depends on values, so that one run proves nothing."""
    axes = node.input[1] if node.op_type.startswith("Reduce") and len(node.input) > 1 else ""
    return (
        node.op_type in _DATA_DEPENDENT
        or any(True for _ in sub_graphs(node))
        or bool(axes and axes not in constants)
    )


def _observe(
    model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto], work_dir: Path
) -> dict[str, TensorType]:
    """Return the types of all values in one run on inputs of ones; {} if that run fails."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    listed = {value.name for value in probe.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in listed:
                probe.graph.output.append(onnx.ValueInfoProto(name=name))
    feeds = {}
    for value in model.graph.input:
        operand_type = tensor_type(types[value.name])
        if operand_type is None:
            return {}
        feeds[value.name] = np.ones(operand_type.shape, operand_type.dtype)
    with TemporaryDirectory(dir=work_dir) as folder:
        save_model(probe, Path(folder) / "probe.onnx")
        try:
            running = session(Path(folder) / "probe.onnx")
            results = running.run(None, feeds)
        except Exception as error:
            if is_out_of_memory(error):
                raise MemoryError(str(error)) from error
            # Inputs of ones are invalid for this model. Its open values stay open; the importer notes them.
            logger.debug("no types from a run on inputs of ones: %s", first_line(error))
            return {}
    names = [value.name for value in running.get_outputs()]
    return {
        name: TensorType(value.shape, str(value.dtype))
        for name, value in zip(names, results, strict=True)
        if isinstance(value, np.ndarray) and str(value.dtype) in ELEMENT_TYPES
    }

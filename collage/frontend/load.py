"""Reading of a model file, and binding of its dynamic dimensions."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import inliner

from collage.errors import DimensionError, ModelError
from collage.frontend.model_files import ModelFiles, open_model
from collage.frontend.onnx_proto import STANDARD_DOMAINS, all_nodes
from collage.frontend.onnx_versions import make_readable
from collage.frontend.training_mode import lower_training_mode

UNNAMED = frozenset({"", "?", "*", "-1", "None", "none", "null"})
"""Placeholders for unnamed dimensions in exported models; two of them may differ."""

MAX_DIMENSION = (1 << 31) - 1
"""Largest valid dimension; larger numbers are typing errors."""

Shapes = Mapping[str, Sequence[int]]


def read_model(path: Path, inputs: Collection[str] = ()) -> tuple[onnx.ModelProto, str]:
    """Load `path` with its external data; return the model and the SHA-256 of all its files.

    Args:
        path: ONNX file.
        inputs: names of inputs with a default that stay inputs, without their defaults; default none.

    Raises:
        ModelError: it is no ONNX model, is damaged, or takes more than the limits of import.
    """
    with open_model(path) as files:
        model = parse_model(files)
        digest = files.digest
        files.fill(model)
    if model.functions:
        model = _inlined(model, path)
    try:
        _normalise(model, frozenset(inputs))
        lower_training_mode(model)
        make_readable(model)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    return model, digest


def read_proto(path: Path) -> onnx.ModelProto:
    """Load `path` with its external data, without normalisation. Raises ModelError."""
    with open_model(path) as files:
        model = parse_model(files)
        files.fill(model)
        return model


def parse_model(files: ModelFiles) -> onnx.ModelProto:
    """Parse a model without its external data. Raises ModelError."""
    try:
        model = onnx.load_model_from_string(files.data)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise ModelError(
            f"{files.path}: not an ONNX model, or truncated ({error}); export or download it again"
        ) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{files.path}: not an ONNX model (no graph); export or download it again")
    return model


def _inlined(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path}: its functions cannot be expanded: {error}") from error


def _normalise(model: onnx.ModelProto, kept_inputs: Set[str]) -> None:
    """Remove weights from the inputs (old files list them), and drop annotations.

    Args:
        model: model to change.
        kept_inputs: inputs whose initialisers are removed instead.
    """
    graph = model.graph
    graph.initializer.extend(dense_tensor(tensor) for tensor in graph.sparse_initializer)
    del graph.sparse_initializer[:]
    for position in reversed(range(len(graph.initializer)) if kept_inputs else ()):
        if graph.initializer[position].name in kept_inputs:
            del graph.initializer[position]
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    for node in all_nodes(model):
        _normalise_node(node)
    del graph.value_info[:]
    del graph.quantization_annotation[:]
    del model.training_info[:]
    model.ir_version = max(model.ir_version, 8)
    versions = {_domain(stamp.domain): stamp.version for stamp in model.opset_import} or {"": 9}
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(*item) for item in versions.items())


def _normalise_node(node: onnx.NodeProto) -> None:
    """Give the standard domain one name, and make a sparse constant dense."""
    if node.domain in STANDARD_DOMAINS:
        node.ClearField("domain")
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name == "sparse_value":
            dense = dense_tensor(attribute.sparse_tensor)
            attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _domain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain


def dense_tensor(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a sparse tensor in dense form; its dense size is checked before. Raises ModelError."""
    values = onnx.numpy_helper.to_array(sparse.values)
    places = onnx.numpy_helper.to_array(sparse.indices)
    shape = tuple(sparse.dims)
    if places.ndim == 2 and places.shape[1] == len(shape):
        columns, sizes = places.T, shape
    else:
        columns, sizes = places.reshape(1, -1), (math.prod(shape),)
    if places.dtype != np.int64 or values.ndim != 1 or len(columns[0]) != len(values):
        raise ModelError(
            f"sparse tensor {sparse.values.name!r} is damaged: places and values differ"
        )
    for column, size in zip(columns, sizes, strict=True):
        if len(column) and not (column.min() >= 0 and column.max() < size):
            raise ModelError(f"sparse tensor {sparse.values.name!r} has a place outside of {shape}")
    result = np.zeros(shape, values.dtype)
    result.reshape(sizes)[tuple(columns)] = values
    return onnx.numpy_helper.from_array(result, sparse.values.name)


def bind_shapes(
    model: onnx.ModelProto, dims: Mapping[str, int], shapes: Shapes, owner: str = ""
) -> list[str]:
    """Give every input of `model` (changed in place) a static shape.

    The inputs' own shapes may give one name several sizes, as ONNX Runtime allows: converters name unrelated
    dimensions alike. Such a name binds nothing else.

    Args:
        model: model to change.
        dims: values of named dimensions.
        shapes: shapes by name of the input.
        owner: beginning of names in advice, "ENTRY/" for one of several entries.

    Returns:
        Notes for the report: names with several sizes.

    Raises:
        DimensionError: a dimension is unbound, unknown, or bound to another size than in `dims`.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.input}
    _check_names(inputs, dims, shapes)
    sizes = {name: {_checked_size(f"dimension {name}", size)} for name, size in dims.items()}
    for name, shape in shapes.items():
        _bind_input(inputs[name], tuple(shape), dims, sizes)
    bound = {name: min(several) for name, several in sizes.items() if len(several) == 1}
    unbound = []
    for value in graph.input:
        dimensions = value.type.tensor_type.shape.dim
        for dim in dimensions:
            if dim.dim_param in bound and not dim.HasField("dim_value"):
                dim.dim_value = bound[dim.dim_param]
        if not value.type.tensor_type.HasField("shape") or any(map(_dynamic, dimensions)):
            unbound.append(value)
    if unbound:
        raise DimensionError(_how_to_bind(unbound, owner), _missing_options(unbound, owner))
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return [
        f"dimension {name} has several sizes: {', '.join(map(str, sorted(several)))}"
        for name, several in sorted(sizes.items())
        if len(several) > 1
    ]


def named_dims(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of dimensions of the model's inputs."""
    return _dim_names(model.graph.input)


def _dim_names(inputs: Iterable[onnx.ValueInfoProto]) -> frozenset[str]:
    dims = (dim for value in inputs for dim in value.type.tensor_type.shape.dim)
    return frozenset(dim.dim_param for dim in dims) - UNNAMED


def _check_names(
    inputs: Mapping[str, onnx.ValueInfoProto], dims: Mapping[str, int], shapes: Shapes
) -> None:
    for value in inputs.values():
        if not value.type.HasField("tensor_type"):
            raise ModelError(
                f"input {value.name} is a {(value.type.WhichOneof('value') or 'value').split('_')[0]}"
                " and no tensor; give its tensors as inputs of their own, or cut off the operators"
                " that read it"
            )
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise ModelError(
                f"input {value.name} holds strings; cut the text processing off the model, run it"
                " before, and give its numbers as inputs"
            )
    names = _dim_names(inputs.values())
    for name in dims:
        if name not in names:
            raise DimensionError(
                f"the model has no dimension named {name!r}; named dimensions: {_list(names)}"
            )
    for name in shapes:
        if name not in inputs:
            raise DimensionError(f"the model has no input {name!r}; inputs: {_list(inputs)}")


def _bind_input(
    value: onnx.ValueInfoProto,
    shape: tuple[int, ...],
    dims: Mapping[str, int],
    sizes: dict[str, set[int]],
) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
        tensor.shape.SetInParent()
    if len(shape) != len(tensor.shape.dim):
        raise DimensionError(
            f"input {value.name} has {len(tensor.shape.dim)} dimensions"
            f" ({_written(value)}), but its shape was given as {shape}"
        )
    for axis, (dim, size) in enumerate(zip(tensor.shape.dim, shape, strict=True)):
        location = f"dimension {axis} of input {value.name}"
        _checked_size(location, size)
        if not _dynamic(dim) and dim.dim_value != size:
            raise DimensionError(
                f"{location} is {dim.dim_value} in the model, but was given as {size}"
            )
        name = dim.dim_param
        if dims.get(name, size) != size:
            raise DimensionError(
                f"dimension {name} is bound to {dims[name]} and to {size} ({location})"
            )
        if name not in UNNAMED:
            sizes.setdefault(name, set()).add(size)
        dim.dim_value = size


def _checked_size(subject: str, size: int) -> int:
    if size < 0:
        raise DimensionError(f"{subject} must not be negative: {size}")
    if size > MAX_DIMENSION:
        raise DimensionError(f"{subject} must be at most {MAX_DIMENSION}, not {size}")
    return size


def _dynamic(dim: onnx.TensorShapeProto.Dimension) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _how_to_bind(unbound: Sequence[onnx.ValueInfoProto], owner: str) -> str:
    lines = ["these inputs have dimensions of unknown size; give each a size:"]
    names: dict[str, None] = {}
    for value in unbound:
        lines.append(f"  --shape {owner}{value.name}={_written(value, '?')}")
        names.update(
            (dim.dim_param, None)
            for dim in value.type.tensor_type.shape.dim
            if _dynamic(dim) and dim.dim_param not in UNNAMED
        )
    lines += [f"  or --dim {owner}{name}=..." for name in names]
    lines.append("(replace each ? by a number; repeat with other shapes for several shape sets)")
    lines.append("  or --samples PATH: real inputs, which have shapes")
    return "\n".join(lines)


def _missing_options(
    unbound: Sequence[onnx.ValueInfoProto], owner: str
) -> dict[str, dict[str, object]]:
    """Return options that bind the inputs: names where every open dimension has one, else shapes."""
    dims: dict[str, object] = {}
    shapes: dict[str, object] = {}
    for value in unbound:
        shape = value.type.tensor_type.shape.dim
        names = [dim.dim_param for dim in shape if _dynamic(dim)]
        if names and not UNNAMED.intersection(names):
            dims |= {f"{owner}{name}": 1 for name in names}
        else:
            sizes = [1 if _dynamic(dim) else dim.dim_value for dim in shape]
            shapes[f"{owner}{value.name}"] = sizes or [1]
    options = {"dims": dims, "shapes": shapes}
    return {name: sizes for name, sizes in options.items() if sizes}


def _written(value: onnx.ValueInfoProto, unknown: str = "") -> str:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return "?,..."
    return ",".join(
        (unknown or dim.dim_param or "?") if _dynamic(dim) else str(dim.dim_value)
        for dim in tensor.shape.dim
    )


def _list(names: object) -> str:
    return ", ".join(sorted(names)) or "none"  # type: ignore[call-overload]

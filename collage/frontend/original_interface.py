"""Inputs and outputs of an original model, with every type of ONNX.

ONNX Runtime accepts values for an initialiser that is also an input, from version 4 of the file format on;
callers may leave such an input out. Older files list every initialiser among the inputs, and callers
cannot override any.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import helper

from collage.errors import ModelError
from collage.frontend.input_names import FIRST_OVERRIDABLE_IR
from collage.frontend.model_files import open_model
from collage.frontend.output_types import OutputTypes, find_output_types
from collage.runtime.fallback import ModelValue
from collage.runtime.value_types import ELEMENTS, STRING, Kind, ValueType


@dataclass(frozen=True)
class OriginalInterface:
    """Inputs and outputs of a model, in the order of the file.

    Attributes:
        inputs: inputs without the initialisers that callers cannot override.
        outputs: outputs.
        sha256: digest of the model's files.
        dim_names: names of each value's open dimensions by value and axis; axes without a name are missing.
        untyped: outputs without a type, which `outputs` lacks, and the reason; "" where all have one.
    """

    inputs: tuple[ModelValue, ...]
    outputs: tuple[ModelValue, ...]
    sha256: str
    dim_names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    untyped: str = ""

    @property
    def is_numeric(self) -> bool:
        """Whether an executable could have these inputs and outputs."""
        return all(value.type.is_numeric for value in (*self.inputs, *self.outputs))

    @property
    def defaults(self) -> tuple[str, ...]:
        """Names of the inputs that callers may leave out."""
        return tuple(value.name for value in self.inputs if value.has_default)

    @property
    def is_dynamic(self) -> bool:
        """Whether an input has several shapes."""
        return any(value.shape is None or -1 in value.shape for value in self.inputs)

    def dim_name(self, value: str, axis: int) -> str:
        """Return the name of an open dimension, "" without one."""
        return self.dim_names.get(value, {}).get(axis, "")


def read_interface(path: Path) -> OriginalInterface:
    """Read the inputs and outputs of the model at `path`.

    Raises:
        ModelError: no model, or a type that no framework passes to its callers.
    """
    with open_model(path) as files:
        model = onnx.load_from_string(files.data)
        digest = files.digest
    graph = model.graph
    untyped = _complete_output_types(graph, path, digest)
    defaults = {tensor.name for tensor in graph.initializer}
    defaults |= {tensor.values.name for tensor in graph.sparse_initializer}
    inputs = [
        value
        for value in graph.input
        if value.name not in defaults or model.ir_version >= FIRST_OVERRIDABLE_IR
    ]
    typed = [value for value in graph.output if value.type.WhichOneof("value")]
    try:
        return OriginalInterface(
            _values(inputs, defaults),
            _values(typed, set()),
            digest,
            _dim_names(graph),
            untyped=untyped,
        )
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _complete_output_types(graph: onnx.GraphProto, path: Path, sha256: str) -> str:
    """Add the types of outputs that the file does not state; say which are missing, and why."""
    types = {value.name: value.type for value in graph.input}
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    open_values = [value for value in graph.output if not value.type.WhichOneof("value")]
    computed = [value.name for value in open_values if value.name not in types]
    completed = find_output_types(path, sha256, computed) if computed else OutputTypes()
    types |= completed.types
    missing = []
    for value in open_values:
        if value.name in types:
            value.type.CopyFrom(types[value.name])
        else:
            missing.append(value.name)
    if not missing:
        return ""
    reason = f" ({completed.reason})" if completed.reason else ""
    return f"ONNX Runtime has no type for the output {', '.join(missing)}{reason}"


def _dim_names(graph: onnx.GraphProto) -> dict[str, dict[int, str]]:
    return {
        info.name: {
            axis: dim.dim_param
            for axis, dim in enumerate(info.type.tensor_type.shape.dim)
            if dim.dim_param
        }
        for info in (*graph.input, *graph.output)
        if info.type.HasField("tensor_type")
    }


def _values(infos: Iterable[onnx.ValueInfoProto], defaults: Set[str]) -> tuple[ModelValue, ...]:
    return tuple(
        ModelValue(
            info.name,
            _type(info.type, info.name),
            _shape(info.type),
            has_default=info.name in defaults,
            place=place,
        )
        for place, info in enumerate(infos)
    )


def _type(proto: onnx.TypeProto, name: str) -> ValueType:
    match proto.WhichOneof("value"):
        case "tensor_type":
            return ValueType(Kind.TENSOR, _element(proto.tensor_type.elem_type, name))
        case "sequence_type":
            return ValueType(Kind.SEQUENCE, element=_type(proto.sequence_type.elem_type, name))
        case "optional_type":
            return ValueType(Kind.OPTIONAL, element=_type(proto.optional_type.elem_type, name))
        case "map_type":
            key = _element(proto.map_type.key_type, name)
            return ValueType(Kind.MAP, key, _type(proto.map_type.value_type, name))
        case kind:
            raise ModelError(
                f"{name!r} is of the type {kind or 'unknown'}, which no framework passes to its callers;"
                " export the model with tensors, sequences or maps there"
            )


def _element(number: int, name: str) -> str:
    dtype = STRING if number == onnx.TensorProto.STRING else _dtype(number)
    if dtype not in ELEMENTS:
        raise ModelError(
            f"{name!r} has elements of type {dtype or number}, which no framework passes to its callers;"
            " export the model with another type there"
        )
    return dtype


def _dtype(number: int) -> str:
    try:
        return str(helper.tensor_dtype_to_np_dtype(number).name)
    except KeyError:
        return ""


def _shape(proto: onnx.TypeProto) -> tuple[int, ...] | None:
    tensor = proto.tensor_type
    if not proto.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else -1
        for dim in tensor.shape.dim
    )

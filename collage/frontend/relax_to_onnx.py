"""Translation of flat Relax functions to ONNX models, operator by operator.

Collage's pipeline starts from an ONNX file: ONNX Runtime without optimisations is the reference of all
numbers. `relax_proof` compares a translation with TVM's own results.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import tvm
from tvm import relax

from collage.errors import ModelError
from collage.frontend.onnx_proto import ELEMENT_TYPES
from collage.frontend.relax_graph import GraphWriter, Operator, Untranslatable
from collage.frontend.relax_ir import bindings, result_types
from collage.frontend.relax_module import FlatFunction
from collage.frontend.relax_nn_operators import NN_OPERATORS
from collage.frontend.relax_operators import OPERATORS

OPSET, IR_VERSION = 20, 9

_TRANSLATIONS = {**OPERATORS, **NN_OPERATORS}

_EXTERNAL_BYTES = 1 << 30
"""Size of a model from which its constants are in a file beside it: a protobuf has less than 2 GiB."""


@dataclass(frozen=True)
class TranslatedOperator:
    """An operator of a flat function with the names of its tensors in the ONNX model."""

    operator: Operator
    operands: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class TranslatedFunction:
    """A flat function as an ONNX model, with its operators in order."""

    flat: FlatFunction
    model: onnx.ModelProto
    operators: tuple[TranslatedOperator, ...]


def translate(flat: FlatFunction) -> TranslatedFunction:
    """Translate a function.

    Raises:
        ModelError: an operator has no translation; the message names it and the function.
    """
    writer, operators = GraphWriter(), []
    for param in flat.function.params:
        writer.names[param] = [_parameter_name(writer, param, flat)]
    for binding in bindings(flat.function):
        value = binding.value
        if isinstance(value, relax.Call):
            translated = _translated(writer, value, flat)
            operators.append(translated)
            writer.names[binding.var] = list(translated.results)
        else:
            writer.names[binding.var] = _aliases(writer, value)
    return TranslatedFunction(flat, _model(flat, writer), tuple(operators))


def write_model(translated: TranslatedFunction, path: Path) -> None:
    """Write the model, with the constants of a large one in a file beside it."""
    is_large = translated.model.ByteSize() >= _EXTERNAL_BYTES
    onnx.save_model(
        translated.model, path, save_as_external_data=is_large, location=f"{path.name}.data"
    )


def _parameter_name(writer: GraphWriter, param: relax.Var, flat: FlatFunction) -> str:
    """Return the parameter's name, the name of the model's input. Raises ModelError."""
    name = param.name
    if [name] in writer.names.values():
        raise ModelError(f"the Relax function {flat.name} has two parameters {name}; rename one")
    if str(param.ty.dtype) not in ELEMENT_TYPES:
        raise ModelError(
            f"the Relax function {flat.name} has the parameter {name} of type {param.ty.dtype}, which ONNX "
            "lacks; cast it"
        )
    return writer.free_name(name)


def _translated(writer: GraphWriter, call: relax.Call, flat: FlatFunction) -> TranslatedOperator:
    where = f"the Relax function {flat.name} has the operator {call.op.name}"
    translation = _TRANSLATIONS.get(str(call.op.name).removeprefix("relax."))
    if translation is None:
        raise ModelError(
            f"{where}, which has no translation to ONNX; export the model to ONNX with its own exporter"
        )
    try:
        operator = Operator.of(call)
        results = translation(writer, operator)
    except Untranslatable as error:
        raise ModelError(
            f"{where} {error}, which has no translation to ONNX; write it with other operators"
        ) from None
    return TranslatedOperator(operator, tuple(operator.tensors(writer)), tuple(results))


def _aliases(writer: GraphWriter, value: relax.Expr) -> list[str]:
    """Return the names of a value that no operator computes: a variable, tuple, field or constant."""
    if isinstance(value, relax.TupleGetItem):
        return [_fields(writer, value.tuple_value)[value.index]]
    return _fields(writer, value)


def _fields(writer: GraphWriter, value: relax.Expr) -> list[str]:
    if isinstance(value, relax.Var):
        return writer.names[value]
    if isinstance(value, relax.Tuple):
        return [name for item in value.fields for name in _fields(writer, item)]
    if isinstance(value, tvm.ir.Constant):
        return [writer.constant(value.value.numpy())]
    return _aliases(writer, value)


def _model(flat: FlatFunction, writer: GraphWriter) -> onnx.ModelProto:
    outputs = list(_outputs(flat, writer))
    inputs = [
        onnx.helper.make_tensor_value_info(
            param.name,
            ELEMENT_TYPES[str(param.ty.dtype)],
            [int(dim) for dim in param.ty.shape.values],
        )
        for param in flat.function.params
    ]
    graph = onnx.helper.make_graph(
        writer.nodes, flat.name, inputs, outputs, initializer=writer.initializers
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_model(
        graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="collage"
    )


def _outputs(flat: FlatFunction, writer: GraphWriter) -> Iterator[onnx.ValueInfoProto]:
    """Yield the outputs, each of an Identity: a result may be a parameter, a constant, or another one."""
    results = _fields(writer, flat.function.body.body)
    for number, (result, tensor) in enumerate(
        zip(results, result_types(flat.function), strict=True)
    ):
        name = writer.free_name("output" if len(results) == 1 else f"output_{number}")
        writer.nodes.append(onnx.helper.make_node("Identity", [result], [name], name))
        if tensor is None:
            raise ModelError(f"the Relax function {flat.name} has a result of unknown shape")
        yield onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[tensor.dtype], tensor.shape)

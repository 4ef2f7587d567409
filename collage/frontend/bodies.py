"""The bodies of control flow as functions of their own.

The bodies of `If`, `Loop` and `Scan` are graphs inside a node, with values captured from outside. A body
whose values have the same shapes in every turn is a function like any other: it is simplified, partitioned
and measured on its own. Captured values are its last inputs, captured weights are its weights.

The caller's types decide: carried values enter with the types of their initial values. If inference gives
the body's results the same types, these hold in every turn, by induction. So the node's outputs have known
shapes too, which ONNX's inference leaves open. A loop with a constant number of turns has stacked results of
known length.

Any other node stays whole on a framework, with the reason in the report.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage.errors import InputError
from collage.frontend.onnx_attributes import attributes_of
from collage.frontend.onnx_proto import (
    STANDARD_DOMAINS,
    captured_by,
    nodes_within,
    tensor_type,
    type_proto,
)
from collage.frontend.onnxruntime_session import first_line
from collage.graph.dataflow import TensorType
from collage.runtime.function_names import body_name

log = logging.getLogger(__name__)

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
}
"""Attributes with the bodies of each operator, in the order of a call."""

MAX_NODES = 16
"""Nodes of a function whose bodies are functions, largest bodies first: each body is folded and searched."""

MAX_BODIES = 64
"""Bodies of a function that are functions, with those within bodies."""

MAX_CAPTURED_BYTES = 256 << 20
"""Limit of the captured weights of one body; they are copied into its file."""

_SCAN_OPSET = 9
"""First operator set with a Scan without batches."""

Types = dict[str, onnx.TypeProto]
Simplify = Callable[[onnx.ModelProto, str], tuple[Path, tuple[str, ...]]]
"""Writes the simplified file of a body under the name of its function; returns its path and its results."""


class BodyRefusal(Exception):
    """The reason against functions for the bodies of a node."""


@dataclass(frozen=True)
class BodyFile:
    """One body in its own file.

    Attributes:
        caller: name of the function with the node.
        node: number of the node in the caller.
        attribute: name of the node's attribute with the body.
        file: simplified file; None where the node stays whole.
        results: a name for each result of the body: an output, an input or a weight of the file.
        refusal: reason for a node that stays whole, else "".
    """

    caller: str
    node: int
    attribute: str
    file: Path | None
    results: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def name(self) -> str:
        """Name of the body's function."""
        return body_name(self.caller, self.node, self.attribute)


@dataclass(frozen=True)
class _Body:
    """A simplified body with the types of its results."""

    file: BodyFile
    types: tuple[TensorType | None, ...]
    constants: frozenset[str]
    """Names of results that are true in every turn."""


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Tell whether a node calls bodies."""
    return node.domain in STANDARD_DOMAINS and node.op_type in ATTRIBUTES


def extract_bodies(
    model: onnx.ModelProto, types: Types, caller: str, simplify: Simplify
) -> Iterator[tuple[list[BodyFile], Types]]:
    """Write the bodies of each control-flow node; yield them with the types of the node's outputs.

    Args:
        model: a tidy model.
        types: types of its values; the caller adds the types of a step before it takes the next one.
        caller: name of the function.
        simplify: writes a body's file. Any exception but MemoryError is a reason to leave the node whole.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    crowd = _beyond_the_largest(model)
    for index, node in enumerate(model.graph.node):
        if not is_control_flow(node):
            continue
        extraction = _Extraction(model, types, weights, node, caller=caller, index=index)
        try:
            if index in crowd:
                raise BodyRefusal(f"only {MAX_NODES} nodes of a function have bodies of their own")
            bodies = [
                extraction.body(attribute, simplify) for attribute in ATTRIBUTES[node.op_type]
            ]
            output_types = extraction.output_types(bodies)
        except MemoryError:
            raise
        except Exception as error:
            # The model is valid without functions of its bodies: whatever fails here, the node stays whole.
            if not isinstance(error, BodyRefusal | InputError):
                log.debug("the bodies of %s are no functions", node.name, exc_info=True)
            refusals = [
                BodyFile(caller, index, attribute, None, refusal=first_line(error))
                for attribute in ATTRIBUTES[node.op_type]
            ]
            yield refusals, {}
        else:
            yield [body.file for body in bodies], output_types


def _beyond_the_largest(model: onnx.ModelProto) -> frozenset[int]:
    """Return the control-flow nodes after the `MAX_NODES` with most operators in their bodies."""
    sizes = {
        index: sum(1 for _ in nodes_within(node))
        for index, node in enumerate(model.graph.node)
        if is_control_flow(node)
    }
    ranked = sorted(sizes, key=lambda index: -sizes[index])
    return frozenset(ranked[MAX_NODES:])


class _Extraction:
    """The bodies of one node."""

    def __init__(
        self,
        model: onnx.ModelProto,
        types: Types,
        weights: Mapping[str, onnx.TensorProto],
        node: onnx.NodeProto,
        *,
        caller: str,
        index: int,
    ) -> None:
        self._model, self._types, self._weights = model, types, weights
        self._node, self._caller, self._index = node, caller, index
        self._attributes = attributes_of(node)
        self._versions = {entry.domain: entry.version for entry in model.opset_import}

    def body(self, attribute: str, simplify: Simplify) -> _Body:
        """Write one body's file. Raises BodyRefusal or InputError where it is no function."""
        graph = next(item.g for item in self._node.attribute if item.name == attribute)
        model = self._body_model(graph)
        path, results = simplify(model, body_name(self._caller, self._index, attribute))
        written = onnx.load(path)
        types = _types_of(written)
        return _Body(
            BodyFile(self._caller, self._index, attribute, path, results=results),
            tuple(types.get(name) for name in results),
            _always_true(written),
        )

    def _body_model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        model = onnx.ModelProto(ir_version=self._model.ir_version)
        model.opset_import.extend(self._model.opset_import)
        copy = model.graph
        copy.CopyFrom(graph)
        copy.name = copy.name or "body"
        del copy.value_info[:], copy.input[:]
        if copy.sparse_initializer:
            raise BodyRefusal("its body has sparse weights")
        own = self._own_types(graph)
        for value, own_type in zip(graph.input, own, strict=True):
            copy.input.append(onnx.helper.make_value_info(value.name, type_proto(own_type)))
        captured_bytes = 0
        for name in captured_by(graph):
            if name in self._weights:
                captured_bytes += _weight_bytes(self._weights[name])
                copy.initializer.append(self._weights[name])
            else:
                outer = type_proto(self._type_of(name, "captured value"))
                copy.input.append(onnx.helper.make_value_info(name, outer))
        if captured_bytes > MAX_CAPTURED_BYTES:
            raise BodyRefusal(f"its body reads {captured_bytes >> 20} MiB of the model's weights")
        for value in copy.output:
            if not value.type.HasField("tensor_type"):
                raise BodyRefusal(f"result {value.name} of its body is no tensor")
            value.type.tensor_type.ClearField("shape")
        _separate_results(copy)
        return model

    def _own_types(self, graph: onnx.GraphProto) -> list[TensorType]:
        """Return the types of the body's own inputs in every turn."""
        operands = list(self._node.input)
        if self._node.op_type == "If":
            return []
        if self._node.op_type == "Loop":
            states = [self._type_of(name, "carried value") for name in operands[2:]]
            scalars = [
                TensorType(_one_number(value), dtype)
                for value, dtype in zip(graph.input[:2], ("int64", "bool"), strict=True)
            ]
            own = [*scalars, *states]
        else:
            own = self._scan_types(operands)
        if len(own) != len(graph.input):
            raise BodyRefusal(f"its body has {len(graph.input)} inputs, not {len(own)}")
        return own

    def _scan_types(self, operands: Sequence[str]) -> list[TensorType]:
        if self._versions.get("", 0) < _SCAN_OPSET:
            raise BodyRefusal(f"a Scan before operator set {_SCAN_OPSET} runs over batches")
        types = [self._type_of(name, "operand") for name in operands]
        count = self._attributes.integer("num_scan_inputs", 0)
        first = len(operands) - count
        axes = self._attributes.integers("scan_input_axes", ()) or [0] * count
        slices = []
        for operand, axis in zip(types[first:], axes, strict=True):
            shape = list(operand.shape)
            del shape[axis]
            slices.append(TensorType(tuple(shape), operand.dtype))
        return [*types[:first], *slices]

    def output_types(self, bodies: Sequence[_Body]) -> Types:
        """Return the types of the node's outputs. Raises BodyRefusal where a shape depends on the turn."""
        is_branch = self._node.op_type == "If"
        results = self._branch_types(bodies) if is_branch else self._loop_types(bodies[0])
        named = zip(self._node.output, results, strict=True)
        return {name: value for name, value in named if name}

    def _branch_types(self, bodies: Sequence[_Body]) -> list[onnx.TypeProto]:
        self._type_of(self._node.input[0], "condition")
        types = []
        for name, first, second in zip(
            self._node.output, bodies[0].types, bodies[1].types, strict=True
        ):
            if first is None or first != second:
                raise BodyRefusal(f"output {name} does not have one shape in both branches")
            types.append(type_proto(first))
        return types

    def _loop_types(self, body: _Body) -> list[onnx.TypeProto]:
        is_loop = self._node.op_type == "Loop"
        first = len(self._node.input) - (
            0 if is_loop else self._attributes.integer("num_scan_inputs", 0)
        )
        states = list(self._node.input[2:] if is_loop else self._node.input[:first])
        results = list(body.types[1:] if is_loop else body.types)
        if is_loop:
            self._check_counters(body)
        for name, result in zip(states, results, strict=False):
            if result != self._type_of(name, "carried value"):
                raise BodyRefusal(f"carried value {name} does not keep its shape from turn to turn")
        turns = self._constant_turns(body) if is_loop else self._scan_length(states)
        axes = [0] * len(results)
        if not is_loop:
            axes[len(states) :] = self._attributes.integers("scan_output_axes", ()) or [0] * (
                len(results) - len(states)
            )
        types = [type_proto(result) for result in results[: len(states)] if result]
        for result, axis in zip(results[len(states) :], axes[len(states) :], strict=True):
            if result is None:
                raise BodyRefusal("a part of its stacked results has no shape of its own")
            types.append(_stacked(result, axis, turns))
        return types

    def _check_counters(self, body: _Body) -> None:
        for name in filter(None, self._node.input[:2]):
            self._type_of(name, "operand")
        condition = body.types[0]
        if condition is None or condition.dtype != "bool" or condition.shape not in ((), (1,)):
            raise BodyRefusal("the condition of its body is not one bool")

    def _constant_turns(self, body: _Body) -> int | None:
        """Return the number of turns of a Loop, None where it depends on data."""
        trips, condition = [*self._node.input, "", ""][:2]
        values = [self._constant(name) for name in (trips, condition)]
        if values[0] is None or (condition and not values[1]):
            return None
        condition_result = body.file.results[0]
        return max(0, int(values[0])) if condition_result in body.constants else None

    def _scan_length(self, states: Sequence[str]) -> int:
        axes = self._attributes.integers("scan_input_axes", ()) or [0]
        return self._type_of(self._node.input[len(states)], "operand").shape[axes[0]]

    def _constant(self, name: str) -> int | None:
        if name not in self._weights:
            return None
        value = onnx.numpy_helper.to_array(self._weights[name])
        return int(value.reshape(-1)[0]) if value.size == 1 else None

    def _type_of(self, name: str, role: str) -> TensorType:
        operand_type = tensor_type(self._types.get(name, onnx.TypeProto()))
        if operand_type is None:
            raise BodyRefusal(
                f"{role} {name} is no tensor of a shape that is known before the model runs"
            )
        return operand_type


def _weight_bytes(tensor: onnx.TensorProto) -> int:
    constant = tensor_type(onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
    return constant.size_bytes if constant else 0


def _one_number(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return the shape of a counter: the body declares a scalar, or a tensor of one number."""
    return (1,) if len(value.type.tensor_type.shape.dim) == 1 else ()


def _stacked(row: TensorType, axis: int, turns: int | None) -> onnx.TypeProto:
    shape: list[int | None] = list(row.shape)
    shape.insert(axis + len(row.shape) + 1 if axis < 0 else axis, turns)
    result = type_proto(row)
    number = result.tensor_type.elem_type
    return onnx.helper.make_tensor_type_proto(number, shape)


def _separate_results(graph: onnx.GraphProto) -> None:
    """Give every result of a body a node and a name of its own."""
    for number, value in enumerate(graph.output):
        name = f"{value.name}_result_{number}"
        graph.node.add(op_type="Identity", input=[value.name], output=[name])
        value.name = name


def strip_passed_on(model: onnx.ModelProto, results: Sequence[str]) -> tuple[str, ...]:
    """Remove the outputs of a tidy body that repeat an input, a weight or another output.

    Args:
        model: tidy body.
        results: names of the body's results by position, repeated ones included.

    Returns:
        the source of every result: an input, a weight or an output of the model.
    """
    graph = model.graph
    sources = {value.name for value in graph.input} | {item.name for item in graph.initializer}
    stripped: dict[str, str] = {}
    for node in graph.node:
        is_copy = node.op_type == "Identity" and node.domain in STANDARD_DOMAINS
        if is_copy and node.output[0] in results and node.input[0] in {*sources, *results}:
            stripped[node.output[0]] = stripped.get(node.input[0], node.input[0])
    nodes = [node for node in graph.node if node.output[0] not in stripped]
    passed_on = {*stripped, *sources}
    outputs = [value for value in graph.output if value.name not in passed_on]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(outputs)
    return tuple(stripped.get(name, name) for name in results)


def _types_of(model: onnx.ModelProto) -> dict[str, TensorType | None]:
    graph = model.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: tensor_type(value.type) for value in values}
    for tensor in graph.initializer:
        constant = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        types[tensor.name] = tensor_type(constant)
    return types


def _always_true(body: onnx.ModelProto) -> frozenset[str]:
    """Return the conditions that allow another turn: a constant, or the condition of this turn."""
    names = {
        tensor.name
        for tensor in body.graph.initializer
        if tensor.data_type == onnx.TensorProto.BOOL
        and bool(onnx.numpy_helper.to_array(tensor).all())
    }
    return frozenset(names | {value.name for value in body.graph.input[1:2]})

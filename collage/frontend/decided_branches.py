"""Branches that static shapes decide.

Exporters write a shape check as an `If`: squeeze where a dimension is 1, else not. With static shapes one of
the branches is never taken, and may not even be valid: then ONNX Runtime refuses the whole model. Such an
`If` is replaced here by the branch that its condition chooses.

A condition is decided where it depends on constants alone, and on the shapes of values whose shapes ONNX's
inference finds. A branch in the place of its `If` makes more shapes known, so the replacement is repeated
until nothing is decided. Bodies that stay come next, with what is known outside of them.

Only models that ONNX Runtime refuses come here; in all others it folds such conditions itself.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from collage.frontend.infer import inferred_types
from collage.frontend.onnx_proto import STANDARD_DOMAINS, captured_by, sub_graphs, tensor_type
from collage.frontend.onnxruntime_session import first_line, session

log = logging.getLogger(__name__)

_SMALL_TENSOR_ELEMENTS = 1024
"""Largest constant that a condition reads."""
_MAX_CONDITION_NODES = 1000
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip

Types = Mapping[str, onnx.TypeProto]
Constants = Mapping[str, onnx.TensorProto]


Producers = Mapping[str, tuple[int, onnx.NodeProto]]
"""Nodes by the values that they make, each with a number that grows in topological order."""


def decide_branches(model: onnx.ModelProto) -> bool:
    """Replace every `If` that static shapes decide by its branch, in place.

    Returns:
        Whether any was replaced.
    """
    return _decide(model.graph, _Scope(model), _UniqueNames(model.graph))


def _decide(graph: onnx.GraphProto, outside: "_Scope", names: "_UniqueNames") -> bool:
    """Decide the branches of one graph, then those of the bodies in it."""
    is_changed = False
    while True:
        scope = outside.within(graph)
        decided = {
            index: choice
            for index, node in enumerate(graph.node)
            if node.op_type == "If" and (choice := scope.condition(node.input[0])) is not None
        }
        if not decided:
            break
        _replace(graph, decided, names)
        is_changed = True
    for node in graph.node:
        for body in sub_graphs(node):
            is_changed |= _decide(body, scope, names)
    return is_changed


@dataclass(frozen=True)
class _Scope:
    """Known facts about the values that a graph reads: its own and those outside of it."""

    model: onnx.ModelProto
    types: Types = field(default_factory=dict)
    constants: Constants = field(default_factory=dict)
    producers: Producers = field(default_factory=dict)

    def within(self, graph: onnx.GraphProto) -> "_Scope":
        """Return the scope of a graph in this one."""
        constants = {**self.constants, **_constants(graph)}
        types = {**self.types, **_types(self.model, graph, self.types, constants)}
        start = 1 + max((number for number, _ in self.producers.values()), default=-1)
        own = {
            name: (start + position, node)
            for position, node in enumerate(graph.node)
            for name in node.output
            if name
        }
        return _Scope(self.model, types, constants, {**self.producers, **own})

    def condition(self, name: str) -> bool | None:
        """Return the value of a condition, None where constants and shapes do not decide it."""
        graph = onnx.GraphProto(name="condition")
        if not self._collect(name, graph):
            return None
        graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None))
        probe = onnx.ModelProto(ir_version=self.model.ir_version, graph=graph)
        probe.opset_import.extend(self.model.opset_import)
        try:
            (result,) = session(probe.SerializeToString()).run(None, {})
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
            log.debug("condition %s is not decided: %s", name, first_line(error))
            return None
        return bool(result.item()) if result.size == 1 else None

    def _collect(self, name: str, graph: onnx.GraphProto) -> bool:
        """Add what computes a value to `graph`; False where it depends on more than shapes."""
        pending, seen = [name], set[str]()
        nodes: dict[int, onnx.NodeProto] = {}
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if (constant := self._constant(value)) is not None:
                graph.initializer.append(constant)
                continue
            position, node = self.producers.get(value, (0, None))
            if node is None or not _is_plain(node) or len(nodes) >= _MAX_CONDITION_NODES:
                return False
            nodes[position] = node
            pending += [operand for operand in node.input if operand]
        graph.node.extend(node for _, node in sorted(nodes.items()))
        return True

    def _constant(self, name: str) -> onnx.TensorProto | None:
        """Return a constant, or the result of Shape or Size of a value with a static shape."""
        if name in self.constants:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(self.constants[name])
            tensor.name = name
            return tensor
        _, node = self.producers.get(name, (0, None))
        if node is None or node.op_type not in ("Shape", "Size"):
            return None
        operand = tensor_type(self.types.get(node.input[0], onnx.TypeProto()))
        if operand is None:
            return None
        if node.op_type == "Size":
            return onnx.numpy_helper.from_array(np.array(np.prod(operand.shape), np.int64), name)
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        dimensions = operand.shape[bounds.get("start", 0) : bounds.get("end", len(operand.shape))]
        return onnx.numpy_helper.from_array(np.array(dimensions, np.int64), name)


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the small constants of a graph by name; inputs with a default are none."""
    inputs = {value.name for value in graph.input}
    constants = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name not in inputs and np.prod(tensor.dims) <= _SMALL_TENSOR_ELEMENTS
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
            tensor = next((a.t for a in node.attribute if a.name == "value"), None)
            if tensor is not None and np.prod(tensor.dims) <= _SMALL_TENSOR_ELEMENTS:
                constants[node.output[0]] = tensor
    return constants


def _types(
    model: onnx.ModelProto, graph: onnx.GraphProto, outer_types: Types, constants: Constants
) -> dict[str, onnx.TypeProto]:
    """Infer the types of a graph's values; captured values have the types from outside."""
    probe = onnx.ModelProto(ir_version=model.ir_version)
    probe.opset_import.extend(model.opset_import)
    probe.graph.CopyFrom(graph)
    probe.graph.name = probe.graph.name or "probe"
    present = {value.name for value in graph.input} | {value.name for value in graph.initializer}
    for name in captured_by(graph):
        if name in present:
            continue
        if name in constants:
            tensor = probe.graph.initializer.add()
            tensor.CopyFrom(constants[name])
            tensor.name = name
        elif name in outer_types:
            probe.graph.input.append(onnx.helper.make_value_info(name, outer_types[name]))
    try:
        return inferred_types(probe)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        log.debug("no shapes of a graph with branches: %s", first_line(error))
        return {}


def _is_plain(node: onnx.NodeProto) -> bool:
    """Tell whether a node computes its outputs from its inputs alone."""
    is_standard = node.domain in STANDARD_DOMAINS and node.op_type not in _RANDOM
    return is_standard and not any(True for _ in sub_graphs(node))


def _replace(graph: onnx.GraphProto, decided: Mapping[int, bool], names: "_UniqueNames") -> None:
    """Put the chosen branches in the places of their `If`s."""
    nodes: list[onnx.NodeProto] = []
    for index, node in enumerate(graph.node):
        if index not in decided:
            nodes.append(node)
            continue
        chosen = "then_branch" if decided[index] else "else_branch"
        branch = next(attribute.g for attribute in node.attribute if attribute.name == chosen)
        renamed = {name: names.new(name) for name in _defined(branch)}
        for tensor in branch.initializer:
            copy = graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = renamed[tensor.name]
        nodes += [_renamed(inner, renamed) for inner in branch.node]
        for result, output in zip(branch.output, node.output, strict=True):
            source = renamed.get(result.name, result.name)
            if output:
                nodes.append(onnx.helper.make_node("Identity", [source], [output]))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of the values that a branch makes itself."""
    yield from (tensor.name for tensor in graph.initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy with other names of values, also where its bodies capture them."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    for body in sub_graphs(copy):
        own = {*_defined(body), *(value.name for value in body.input)}
        outer = {name: new for name, new in names.items() if name not in own}
        nodes = [_renamed(inner, outer) for inner in body.node]
        del body.node[:]
        body.node.extend(nodes)
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return copy


class _UniqueNames:
    """Names of values that no graph of the model has."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._used = set(_all_names(graph))

    def new(self, name: str) -> str:
        """Return a name like `name` that is free, and take it."""
        number = 0
        while (candidate := f"{name}/taken{number}") in self._used:
            number += 1
        self._used.add(candidate)
        return candidate


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from _defined(graph)
    for node in graph.node:
        yield from node.input
        for body in sub_graphs(node):
            yield from _all_names(body)

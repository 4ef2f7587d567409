"""Normalisation of a graph: plain operator calls in topological order, with unique names.

Dead nodes, Constant and Identity nodes are removed. An output of the graph is a result of a node, an input or
a weight; an output that is listed again is left out, since results have names.
"""

from collections.abc import Iterable, Mapping

import onnx

from collage.errors import ModelError
from collage.frontend.onnx_proto import STANDARD_DOMAINS, nodes_within, reads, sub_graphs

_DEFAULT_OPSET = 17
_OPTIONAL_OUTPUTS = {
    "Dropout": 1, "MaxPool": 1, "LayerNormalization": 1, "BatchNormalization": 1,
}  # fmt: skip
"""Number of required outputs of operators with optional ones."""


def tidy(model: onnx.ModelProto) -> None:
    """Normalise the graph in place: no dead or trivial nodes, sorted, unique names."""
    graph = model.graph
    _list_outputs_once(graph)
    nodes = _drop_dead(list(graph.node), [value.name for value in graph.output])
    nodes = _constants_to_weights(graph, nodes)
    nodes = _drop_identities(graph, nodes)
    nodes = _sorted(nodes)
    nodes = _drop_dead(nodes, [value.name for value in graph.output])
    _drop_optional_outputs(nodes, {value.name for value in graph.output})
    _name_uniquely(nodes)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in reads(node)}
    used.update(value.name for value in graph.output)
    weights = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    del graph.value_info[:]
    _keep_used_opsets(model)


def _list_outputs_once(graph: onnx.GraphProto) -> None:
    outputs = {value.name: value for value in graph.output}
    del graph.output[:]
    graph.output.extend(outputs.values())


def _drop_dead(nodes: list[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    live = set(outputs)
    live_nodes = []
    for node in reversed(_sorted(nodes)):
        if live.intersection(node.output):
            live.update(reads(node))
            live_nodes.append(node)
    return live_nodes[::-1]


def _constants_to_weights(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto]
) -> list[onnx.NodeProto]:
    remaining = []
    for node in nodes:
        value = _constant_value(node)
        if value is None:
            remaining.append(node)
        else:
            value.name = node.output[0]
            graph.initializer.append(value)
    return remaining


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        value = onnx.TensorProto()
        value.CopyFrom(attribute.t)
        return value
    integers, floats = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    if attribute.name == "value_int":
        return onnx.helper.make_tensor("", integers, [], [attribute.i])
    if attribute.name == "value_float":
        return onnx.helper.make_tensor("", floats, [], [attribute.f])
    if attribute.name == "value_ints":
        return onnx.helper.make_tensor("", integers, [len(attribute.ints)], attribute.ints)
    if attribute.name == "value_floats":
        return onnx.helper.make_tensor("", floats, [len(attribute.floats)], attribute.floats)
    return None


def _drop_identities(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    remaining = []
    for node in nodes:
        if node.op_type == "Identity" and node.domain in STANDARD_DOMAINS:
            source = renamed.get(node.input[0], node.input[0])
            if node.output[0] not in outputs:
                renamed[node.output[0]] = source
                continue
        remaining.append(node)
    for node in remaining:
        _rename(node, renamed)
    return _merge_output_identities(remaining, outputs)


def drop_equal_casts(model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto]) -> None:
    """Remove casts to the type that the value has already, except before outputs of the graph."""
    outputs = {value.name for value in model.graph.output}
    renamed: dict[str, str] = {}
    remaining = []
    for node in model.graph.node:
        is_cast = node.op_type == "Cast" and node.domain in STANDARD_DOMAINS
        if is_cast and node.output[0] not in outputs and _has_equal_types(node, types):
            renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
        else:
            remaining.append(node)
    for node in remaining:
        _rename(node, renamed)
    del model.graph.node[:]
    model.graph.node.extend(remaining)


def _has_equal_types(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    source, target = (
        types.get(name, onnx.TypeProto()).tensor_type.elem_type
        for name in (node.input[0], node.output[0])
    )
    return bool(source) and source == target


def _merge_output_identities(
    nodes: list[onnx.NodeProto], outputs: set[str]
) -> list[onnx.NodeProto]:
    """Remove Identity nodes before outputs: the producer writes the output itself."""
    producer = {name: node for node in nodes for name in node.output}
    renamed: dict[str, str] = {}
    remaining = []
    for node in nodes:
        if node.op_type == "Identity" and node.domain in STANDARD_DOMAINS:
            source = node.input[0]
            if source in producer and source not in outputs and source not in renamed:
                renamed[source] = node.output[0]
                continue
        remaining.append(node)
    for node in remaining:
        _rename(node, renamed)
        for position, name in enumerate(node.output):
            node.output[position] = renamed.get(name, name)
    return remaining


def _rename(node: onnx.NodeProto, renamed: dict[str, str]) -> None:
    for position, name in enumerate(node.input):
        node.input[position] = renamed.get(name, name)
    for graph in sub_graphs(node):
        own = {value.name for value in graph.input} | {item.name for item in graph.initializer}
        own.update(name for inner in graph.node for name in inner.output)
        outer = {old: new for old, new in renamed.items() if old not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def _sorted(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Sort topologically and stably: nodes in order keep their position."""
    pending = {name for node in nodes for name in node.output if name}
    ordered: list[onnx.NodeProto] = []
    waiting = list(nodes)
    while waiting:
        later = []
        for node in waiting:
            if pending.intersection(reads(node)):
                later.append(node)
            else:
                ordered.append(node)
                pending.difference_update(node.output)
        if len(later) == len(waiting):
            raise ModelError("the model's nodes form a cycle; export it again")
        waiting = later
    return ordered


def _drop_optional_outputs(nodes: list[onnx.NodeProto], outputs: set[str]) -> None:
    used = outputs.union(*(reads(node) for node in nodes)) if nodes else outputs
    for node in nodes:
        min_outputs = _OPTIONAL_OUTPUTS.get(node.op_type)
        while min_outputs and len(node.output) > min_outputs and node.output[-1] not in used:
            del node.output[-1]


def _name_uniquely(nodes: list[onnx.NodeProto]) -> None:
    used_names: set[str] = set()
    for index, node in enumerate(nodes):
        if not node.name or node.name in used_names:
            node.name = f"{node.op_type}_{index}"
        while node.name in used_names:
            node.name += "_"
        used_names.add(node.name)


def _keep_used_opsets(model: onnx.ModelProto) -> None:
    versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    used = {
        "" if inner.domain == "ai.onnx" else inner.domain
        for node in model.graph.node
        for inner in nodes_within(node)
    }
    del model.opset_import[:]
    for domain in sorted(used | {""}):
        model.opset_import.append(
            onnx.helper.make_opsetid(domain, versions.get(domain, 1 if domain else _DEFAULT_OPSET))
        )

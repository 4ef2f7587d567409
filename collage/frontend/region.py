"""A region (a set of nodes) of a function: its values, ONNX and Relax forms, digest, bytes and FLOP.

The ONNX form consists of the original nodes. The Relax form is one dataflow block of plain operators, with
the bodies of composite operators inline.
"""

import hashlib
import math
from collections.abc import Set
from itertools import chain
from typing import TYPE_CHECKING

import onnx

from collage.errors import BackendError
from collage.frontend.digest import domains_of
from collage.frontend.model import Function
from collage.frontend.value_dependence import cost_depends_on_values
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices

if TYPE_CHECKING:
    import tvm
    from tvm import relax

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
_KEEP_VALUES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose"})
_PARTIAL_READS = frozenset({
    "Gather", "GatherElements", "GatherND", "Slice", "Split", "Shape", "Size", "Compress",
})  # fmt: skip


def region_values(function: Function, nodes: IndexSet) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the region's inputs and outputs.

    Inputs are values from outside, without weights, in order of first use. Outputs are values for other
    nodes or for the function's outputs, in order of production.
    """
    graph = function.graph
    inputs: dict[str, None] = {}
    outside: set[str] = set(graph.outputs)
    produced: dict[str, None] = {}
    users = 0
    for index in indices(nodes):
        produced.update(dict.fromkeys(graph.nodes[index].outputs))
        users |= graph.successors[index]
    for index in indices(nodes):
        for value in graph.nodes[index].inputs:
            if value and value not in produced and value not in graph.constants:
                inputs[value] = None
    for index in indices(users & ~nodes):
        outside.update(graph.nodes[index].inputs)
    return tuple(inputs), tuple(value for value in produced if value in outside)


def probability_outputs(function: Function) -> frozenset[str]:
    """Return the function's outputs of a Softmax or a Sigmoid, direct or through views."""
    return function_outputs_of(function, frozenset({"Softmax", "Sigmoid"}))


def function_outputs_of(function: Function, ops: Set[str]) -> frozenset[str]:
    """Return the function's outputs of one of `ops`, direct or through views."""
    graph, matching = function.graph, set()
    for output in graph.outputs:
        value = output
        while value in graph.producer and graph.nodes[graph.producer[value]].op in _KEEP_VALUES:
            value = graph.nodes[graph.producer[value]].inputs[0]
        if value in graph.producer and graph.nodes[graph.producer[value]].op in ops:
            matching.add(output)
    return frozenset(matching)


def region_weights(function: Function, nodes: IndexSet) -> tuple[str, ...]:
    """Return all weights of the region, in order of first use."""
    weights: dict[str, None] = {}
    for index in indices(nodes):
        for value in function.graph.nodes[index].inputs:
            if value in function.weights:
                weights[value] = None
    return tuple(weights)


def region_onnx(
    function: Function, nodes: IndexSet, weights_as_inputs: bool = False
) -> onnx.ModelProto:
    """Return the region as a model from `region_values`' inputs to its outputs.

    With `weights_as_inputs` the weights follow the inputs, in the order of `region_weights`.
    """
    inputs, outputs = region_values(function, nodes)
    weights = region_weights(function, nodes)
    model = onnx.ModelProto(ir_version=function.ir_version, producer_name="collage")
    graph = model.graph
    graph.name = "region"
    graph.node.extend(function.onnx_nodes[index] for index in indices(nodes))
    graph.input.extend(_value_info(function, name) for name in inputs)
    graph.output.extend(_value_info(function, name) for name in outputs)
    for name in weights:
        if weights_as_inputs:
            graph.input.append(_value_info(function, name))
        else:
            graph.initializer.append(onnx.numpy_helper.from_array(function.weights[name], name))
    domains = {"", *chain.from_iterable(domains_of(function.onnx_nodes[i]) for i in indices(nodes))}
    for domain in sorted(domains):
        model.opset_import.append(onnx.helper.make_opsetid(domain, function.opsets[domain]))
    return model


def _value_info(function: Function, name: str) -> onnx.ValueInfoProto:
    weight = function.weights.get(name)
    if weight is None:
        value_type = function.value_types.get(name)
        return onnx.helper.make_value_info(name, value_type or onnx.TypeProto())
    number = onnx.helper.np_dtype_to_tensor_dtype(weight.dtype)
    return onnx.helper.make_tensor_value_info(name, number, weight.shape)


def region_constants(function: Function, nodes: IndexSet) -> tuple[str, ...]:
    """Return the weight parameters of `region_relax`, in order; they follow the inputs."""
    constants: dict[str, None] = {}
    for index in indices(nodes):
        node = function.relax_nodes[index]
        for name in node.operands if node else ():
            if name in function.weights:
                constants[name] = None
    return tuple(constants)


def region_relax(function: Function, nodes: IndexSet) -> "tvm.IRModule":
    """Return the region as Relax: `main` takes the inputs, then `region_constants`.

    One output is returned as it is, several as a tuple.

    Raises:
        BackendError: a node has no Relax form.
    """
    from tvm import relax

    from collage.frontend.relax_ir import relax_type

    inputs, outputs = region_values(function, nodes)
    names = (*inputs, *region_constants(function, nodes))
    types = function.graph.types
    for name in names:
        if name not in types:
            raise BackendError(f"the shape of {name} is not known before the model runs")
    values: dict[str, relax.Expr] = {
        name: relax.Var(f"p{number}", relax_type(types[name])) for number, name in enumerate(names)
    }
    builder = relax.BlockBuilder()
    with builder.function("main", [values[name] for name in names]):
        with builder.dataflow():
            for index in indices(nodes):
                _inline(builder, function, index, values)
            results = [builder.emit_output(values[name]) for name in outputs]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get()


def _inline(
    builder: "relax.BlockBuilder", function: Function, index: int, values: "dict[str, relax.Expr]"
) -> None:
    from tvm import relax

    from collage.frontend.relax_ir import bindings, substitute

    node, relax_node = function.graph.nodes[index], function.relax_nodes[index]
    if relax_node is None:
        raise BackendError(f"{node.op} ({node.name}) has no form in Relax")
    operands = [values[name] for name in relax_node.operands]
    new = dict(zip(relax_node.function.params, operands, strict=True))
    for binding in bindings(relax_node.function):
        value = substitute(binding.value, new)
        emitted = value if isinstance(value, relax.Var | relax.Tuple) else builder.emit(value)
        new[binding.var] = emitted
    result = substitute(relax_node.function.body.body, new)
    if len(node.outputs) == 1:
        values[node.outputs[0]] = result
        return
    for position, name in enumerate(node.outputs):
        if isinstance(result, relax.Tuple):
            values[name] = result.fields[position]
        else:
            values[name] = builder.emit(relax.TupleGetItem(result, position))


def region_digest(function: Function, nodes: IndexSet) -> str:
    """Return the SHA-256 of the region's structure; see `collage.frontend.digest`.

    Where the user's samples decide how much the region computes, they are a part of the digest, with the
    model and the place in it, since these decide the values that the region reads.
    """
    digest = function.digests.of(nodes)
    if function.has_samples and cost_depends_on_values(function.graph, function.onnx_nodes, nodes):
        text = f"{digest} {nodes:x} {function.name} {function.sample_digest}"
        return hashlib.sha256(text.encode()).hexdigest()
    return digest


def region_bytes_and_flops(function: Function, nodes: IndexSet) -> tuple[int, int]:
    """Return the minimum memory traffic of the region in bytes, and the FLOP of its products.

    Each input, weight and output counts once. A partially read operand (`Gather`, `Slice`) counts with
    the bytes read. A region of reshapes alone moves nothing. FLOP are those of direct convolutions and
    matrix products (2 per multiply-add), nothing else; an algorithm like Winograd's needs fewer.
    """
    graph = function.graph
    inside = [graph.nodes[index] for index in indices(nodes)]
    flops = sum(_flops(function, node) for node in inside)
    if all(node.op in _VIEWS for node in inside):
        return 0, flops
    inputs, outputs = region_values(function, nodes)
    moved = sum(_size(function, name) for name in outputs)
    read = dict.fromkeys((*inputs, *region_weights(function, nodes)), 0)
    for node in inside:
        read_bytes = sum(_size(function, name) for name in node.outputs)
        for name in dict.fromkeys(node.inputs):
            if name in read:
                size_bytes = _size(function, name)
                part = min(size_bytes, read_bytes) if node.op in _PARTIAL_READS else size_bytes
                read[name] = min(size_bytes, read[name] + part)
    return moved + sum(read.values()), flops


def _size(function: Function, name: str) -> int:
    static_type = function.graph.types.get(name)
    return static_type.size_bytes if static_type else 0


def _flops(function: Function, node: Node) -> int:
    names = (*node.inputs[:2], *node.outputs[:1])
    shapes = [function.graph.types[name].shape for name in names if name in function.graph.types]
    return _product_flops(node.op, *shapes) if len(shapes) == 3 else 0


def _product_flops(
    op: str, lhs: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]
) -> int:
    if op == "Conv":
        return 2 * math.prod(result) * math.prod(right[1:])
    if op == "ConvTranspose":
        return 2 * math.prod(lhs) * math.prod(right[1:])
    if op == "MatMul" and lhs:
        return 2 * math.prod(result) * lhs[-1]
    if op == "Gemm":
        return 2 * math.isqrt(math.prod(lhs) * math.prod(right) * math.prod(result))
    return 0

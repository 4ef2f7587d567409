"""Small queries on ONNX protobufs, shared by several modules."""

from collections.abc import Iterator

import onnx

from collage.graph.dataflow import OpenType, TensorType

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})

_DTYPES = {
    onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT16: "int16", onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT64: "uint64", onnx.TensorProto.UINT32: "uint32",
    onnx.TensorProto.UINT16: "uint16", onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.BOOL: "bool",
}  # fmt: skip
ELEMENT_TYPES = {name: number for number, name in _DTYPES.items()}


def tensor_type(value: onnx.TypeProto) -> TensorType | None:
    """Return the type of a tensor with a static shape, else None."""
    tensor = value.tensor_type
    if not value.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    if tensor.elem_type not in _DTYPES or min(dims, default=0) < 0:
        return None
    return TensorType(tuple(dims), _DTYPES[tensor.elem_type])


def open_type(value: onnx.TypeProto) -> OpenType:
    """Return the open type of a tensor with a data-dependent shape; dtype "" means unsupported."""
    tensor = value.tensor_type
    dtype = _DTYPES.get(tensor.elem_type, "")
    if not tensor.HasField("shape"):
        return OpenType(None, dtype)
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    return OpenType(tuple(dims), dtype)


def type_proto(value: TensorType) -> onnx.TypeProto:
    """Convert a tensor type to ONNX."""
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[value.dtype], value.shape)


def sub_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of If, Loop and Scan."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def nodes_within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the node and all nodes of its bodies."""
    yield node
    for graph in sub_graphs(node):
        for inner in graph.node:
            yield from nodes_within(inner)


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph and of local functions, with all nodes of their bodies."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes:
            yield from nodes_within(node)


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of the model: of graphs, bodies, functions and attributes."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute)
        for node in function.node:
            for attribute in node.attribute:
                yield from _attribute_tensors(attribute)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for sparse_tensor in (*sparse, *attribute.sparse_tensors):
        yield from (sparse_tensor.values, sparse_tensor.indices)
    graphs = [attribute.g] if attribute.HasField("g") else []
    for graph in (*graphs, *attribute.graphs):
        yield from _graph_tensors(graph)


def captured(node: onnx.NodeProto) -> list[str]:
    """Return the outer values read by the node's bodies, in order of first use."""
    return list(dict.fromkeys(name for graph in sub_graphs(node) for name in captured_by(graph)))


def captured_by(graph: onnx.GraphProto) -> list[str]:
    """Return the outer values read by a body, in order of first use."""
    captured_names: dict[str, None] = {}
    own = {value.name for value in graph.input}
    own.update(value.name for value in graph.initializer)
    own.update(value.values.name for value in graph.sparse_initializer)
    for inner in graph.node:
        reads = [*inner.input, *captured(inner)]
        captured_names.update((name, None) for name in reads if name and name not in own)
        own.update(inner.output)
    results = [value.name for value in graph.output]
    captured_names.update((name, None) for name in results if name not in own)
    return list(captured_names)


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the operands in order ("" for omitted ones), then the values captured by bodies."""
    operands = tuple(node.input)
    return operands + tuple(name for name in captured(node) if name not in operands)


def op_name(node: onnx.NodeProto) -> str:
    """Return the operator's type, with its domain as prefix unless it is the standard one."""
    if node.domain in STANDARD_DOMAINS:
        return str(node.op_type)
    return f"{node.domain}.{node.op_type}"

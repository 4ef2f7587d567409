"""Loading of a function from its simplified file, without any slow step.

The file is standard ONNX: folded, with static shapes and with the type of every value. Its metadata holds
the operator kinds, so loading needs no TVM.
"""

import json
from pathlib import Path

import onnx

from collage.frontend.convert import RelaxNodes, single_node
from collage.frontend.model import Function
from collage.frontend.onnx_proto import ELEMENT_TYPES, STANDARD_DOMAINS, op_name, reads, tensor_type
from collage.graph.dataflow import DataflowGraph, Node, TensorType
from collage.graph.op_pattern import OpPatternKind

KINDS = "collage.kinds"
"""Key of the operator kinds in the file's metadata: a JSON list of numbers, one per node."""


def load_function(simplified: Path, name: str) -> Function:
    """Load a function from a file of `import_model`, without folding or inference."""
    model = onnx.load(simplified)
    kinds = next(json.loads(e.value) for e in model.metadata_props if e.key == KINDS)
    return make_function(model, name, simplified, [OpPatternKind(kind) for kind in kinds])


def make_function(
    model: onnx.ModelProto, name: str, simplified: Path, kinds: list[OpPatternKind]
) -> Function:
    """Make a function of a model with the types of all values in `value_info`."""
    graph = model.graph
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    for value in weights.values():
        value.setflags(write=False)
    value_types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    types = {
        key: static_type
        for key, value in value_types.items()
        if (static_type := tensor_type(value))
    }
    types |= {
        key: TensorType(value.shape, str(value.dtype))
        for key, value in weights.items()
        if str(value.dtype) in ELEMENT_TYPES
    }
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    onnx_nodes = tuple(graph.node)
    return Function(
        name=name,
        graph=DataflowGraph(
            nodes=tuple(
                _node(index, node, kind)
                for index, (node, kind) in enumerate(zip(onnx_nodes, kinds, strict=True))
            ),
            types=types,
            inputs=tuple(value.name for value in graph.input),
            outputs=tuple(value.name for value in graph.output),
            constants=frozenset(weights),
        ),
        onnx_nodes=onnx_nodes,
        relax_nodes=RelaxNodes(
            lambda index: single_node(onnx_nodes[index], types, weights, opsets[""]),
            len(onnx_nodes),
        ),
        weights=weights,
        opsets=opsets,
        ir_version=model.ir_version,
        simplified=simplified,
        value_types=value_types,
    )


def _node(index: int, node: onnx.NodeProto, kind: OpPatternKind) -> Node:
    outputs = tuple(name for name in node.output if name)
    if node.domain in STANDARD_DOMAINS:
        node.domain = ""
    return Node(index, node.name, op_name(node), kind, inputs=reads(node), outputs=outputs)

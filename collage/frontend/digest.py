"""The digest of a region: one identity for all equal computations.

Two regions have the same digest if they compute the same from operands of equal types. Names and values
of weights are excluded, so a measured cost holds for every layer, function and model with this
structure. Small integers and scalars are included: they decide shapes, axes and the choice of kernel.

A function has tens of thousands of regions, many more than nodes. So the text of each node is computed
once. A region is the sequence of these texts with values numbered in order of first use: O(nodes inside)
short string operations. Digests are cached.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from collage.frontend.onnx_proto import nodes_within, reads, sub_graphs
from collage.frontend.random_operators import draws
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, indices

_MAX_INLINE_ELEMENTS = 64
"""Integer weights up to this size are part of the digest."""


class RegionDigests:
    """The digests of one function's regions, cached."""

    def __init__(
        self,
        graph: DataflowGraph,
        onnx_nodes: Sequence[onnx.NodeProto],
        *,
        weights: Mapping[str, np.ndarray],
        opsets: Mapping[str, int],
        value_types: Mapping[str, onnx.TypeProto],
    ) -> None:
        """Prepare the text of every node; the arguments are fields of `model.Function`."""
        self._graph = graph
        self._weights = weights
        self._opsets = opsets
        self._value_types = value_types
        self._digests: dict[IndexSet, str] = {}
        self._returned = frozenset(graph.outputs)
        self._domains = [domains_of(node) for node in onnx_nodes]
        pairs = zip(onnx_nodes, graph.nodes, strict=True)
        self._node_texts = [_node_text(proto, node) for proto, node in pairs]
        self._bodies = [
            tuple(reads(proto)) if any(sub_graphs(proto)) else () for proto in onnx_nodes
        ]
        self._operand_texts: dict[str, str] = {}

    def of(self, nodes: IndexSet) -> str:
        """Return the SHA-256 of the region's structure, as hexadecimal digits."""
        if nodes not in self._digests:
            text = "\n".join(self._lines(nodes))
            self._digests[nodes] = hashlib.sha256(text.encode()).hexdigest()
        return self._digests[nodes]

    def _lines(self, nodes: IndexSet) -> list[str]:
        graph = self._graph
        names: dict[str, str] = {"": ""}
        lines: list[str] = []
        outputs: list[str] = []
        domains: set[str] = {""}
        for position, index in enumerate(indices(nodes)):
            node = graph.nodes[index]
            for value in node.inputs:
                if value not in names:
                    names[value] = f"o{len(names)}"
                    lines.append(self._operand(value))
            lines.append(
                f"{self._node_texts[index]}({','.join([names[value] for value in node.inputs])})"
            )
            # The bodies of If, Loop and Scan refer to captured values by name.
            lines.extend(f"{value}={names[value]}" for value in self._bodies[index])
            domains.update(self._domains[index])
            for number, value in enumerate(node.outputs):
                names[value] = f"v{position}.{number}"
                if value in self._returned or graph.readers.get(value, 0) & ~nodes:
                    outputs.append(names[value])
        opsets = self._opsets
        return [*lines, ",".join(outputs), *(f"{name}:{opsets[name]}" for name in sorted(domains))]

    def _operand(self, value: str) -> str:
        if value not in self._operand_texts:
            weight = self._weights.get(value)
            text = self._type_text(value) if weight is None else _weight_text(weight)
            self._operand_texts[value] = text
        return self._operand_texts[value]

    def _type_text(self, name: str) -> str:
        static_type = self._graph.types.get(name)
        if static_type:
            return f"{static_type.dtype}{list(static_type.shape)}"
        unknown = self._value_types.get(name)
        return unknown.SerializeToString(deterministic=True).hex() if unknown else "?"


def domains_of(node: onnx.NodeProto) -> frozenset[str]:
    """Return the operator sets of the node and its bodies; "" is the standard one."""
    return frozenset(
        "" if inner.domain == "ai.onnx" else inner.domain for inner in nodes_within(node)
    )


def _node_text(proto: onnx.NodeProto, node: Node) -> str:
    attributes = []
    for attribute in sorted(proto.attribute, key=lambda item: item.name):
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute)
        copy.doc_string = ""
        text = copy.SerializeToString(deterministic=True)
        attributes.append(hashlib.sha256(text).hexdigest() if len(text) > 256 else text.hex())
    output_flags = "".join("1" if name else "0" for name in proto.output)
    judged = " judged by moments" if draws(proto) else ""
    return f"{node.op} {' '.join(attributes)} {output_flags}{judged}"


def _weight_text(value: np.ndarray) -> str:
    text = f"constant {value.dtype}{list(value.shape)}"
    if value.size == 1 or (value.dtype.kind in "iub" and value.size <= _MAX_INLINE_ELEMENTS):
        text += str(value.tolist())
    return text

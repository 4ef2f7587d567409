"""The digest of a region: one name for all regions that compute the same.

Two regions have one digest when they compute the same from operands of equal types. Names and the
values of weights are left out, so a measured cost holds for every layer, function and model with
this structure; small integers and scalars stay in, because they decide shapes, axes and which
kernel is chosen.

A function has many more regions than nodes (tens of thousands), so what a node says of itself is
written once, and a region is the sequence of these texts with its values numbered in order of first
use: O(nodes inside) short string operations. Answers are remembered.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import onnx

from collage.frontend.onnx_proto import nodes_within, reads, sub_graphs
from collage.graph.dataflow import Node
from collage.graph.index_set import IndexSet, indices

if TYPE_CHECKING:
    from collage.frontend.model import Function

_SMALL_ELEMENTS = 64


class RegionDigests:
    """The digests of one function's regions."""

    def __init__(self, function: "Function") -> None:
        self._function = function
        self._known: dict[IndexSet, str] = {}
        self._returned = frozenset(function.graph.outputs)
        self._domains = [domains_of(node) for node in function.onnx_nodes]
        pairs = zip(function.onnx_nodes, function.graph.nodes, strict=True)
        self._node_texts = [_node_text(proto, node) for proto, node in pairs]
        self._bodies = [tuple(reads(p)) if any(sub_graphs(p)) else () for p in function.onnx_nodes]
        self._operand_texts: dict[str, str] = {}

    def of(self, nodes: IndexSet) -> str:
        """Return the SHA-256 of the region's structure, as hexadecimal digits."""
        if nodes not in self._known:
            text = "\n".join(self._lines(nodes))
            self._known[nodes] = hashlib.sha256(text.encode()).hexdigest()
        return self._known[nodes]

    def _lines(self, nodes: IndexSet) -> list[str]:
        graph = self._function.graph
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
            # The bodies of If, Loop and Scan call what they capture by its name.
            lines.extend(f"{value}={names[value]}" for value in self._bodies[index])
            domains.update(self._domains[index])
            for number, value in enumerate(node.outputs):
                names[value] = f"v{position}.{number}"
                if value in self._returned or graph.readers.get(value, 0) & ~nodes:
                    outputs.append(names[value])
        opsets = self._function.opsets
        return [*lines, ",".join(outputs), *(f"{name}:{opsets[name]}" for name in sorted(domains))]

    def _operand(self, value: str) -> str:
        if value not in self._operand_texts:
            weight = self._function.weights.get(value)
            text = self._type_text(value) if weight is None else _weight_text(weight)
            self._operand_texts[value] = text
        return self._operand_texts[value]

    def _type_text(self, name: str) -> str:
        found = self._function.graph.types.get(name)
        if found:
            return f"{found.dtype}{list(found.shape)}"
        unknown = self._function.value_types.get(name)
        return unknown.SerializeToString(deterministic=True).hex() if unknown else "?"


def domains_of(node: onnx.NodeProto) -> frozenset[str]:
    """Return the operator sets that the node and its bodies use; "" is the standard one."""
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
    made = "".join("1" if name else "0" for name in proto.output)
    return f"{node.op} {' '.join(attributes)} {made}"


def _weight_text(value: np.ndarray) -> str:
    text = f"constant {value.dtype}{list(value.shape)}"
    if value.size == 1 or (value.dtype.kind in "iub" and value.size <= _SMALL_ELEMENTS):
        text += str(value.tolist())
    return text

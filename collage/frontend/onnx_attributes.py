"""ONNX attributes of a node, typed, with the operator's default where one is absent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx

if TYPE_CHECKING:
    from collage.frontend.model import Function


@dataclass(frozen=True)
class NodeAttributes:
    """Attributes by name, as `onnx.helper` decodes them."""

    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: object = None) -> object:
        """Return the decoded value."""
        value: object = self.values.get(name, default)
        return value

    def integer(self, name: str, default: int) -> int:
        return int(self.values.get(name, default))

    def number(self, name: str, default: float) -> float:
        return float(self.values.get(name, default))

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.values.get(name, default))


def attributes_of(node: onnx.NodeProto) -> NodeAttributes:
    """Return the attributes of a node."""
    return NodeAttributes({a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})


def node_attributes(function: "Function", index: int) -> NodeAttributes:
    """Return the attributes of node `index`."""
    return attributes_of(function.onnx_nodes[index])

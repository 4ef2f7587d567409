"""Types of a model's inputs and outputs, e.g. `tensor(float32)`, `sequence(tensor(string))`.

An executable has tensors of numbers only. The original model has every type of ONNX: text, sequences, maps,
optional values. The text of a type is that of ONNX Runtime, with numpy's names of element types.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from collage.runtime.element_types import DTYPES

STRING = "string"
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
ELEMENTS = frozenset(DTYPES) | {STRING, *FLOAT8, "complex64", "complex128"}
"""Element types of an original model's tensors, by numpy's name."""
MAX_TYPE_DEPTH = 8
_TYPE = re.compile(r"(tensor|sequence|optional|map)\((.*)\)")


class Kind(StrEnum):
    """Kind of a value."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    MAP = "map"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of ONNX.

    Attributes:
        kind: kind of the value.
        dtype: element type of a tensor, key type of a map; "" for other kinds.
        element: type of the elements, of a map's values or of an optional value; None for a tensor.
    """

    kind: Kind
    dtype: str = ""
    element: "ValueType | None" = None

    def __str__(self) -> str:
        return f"{self.kind}({','.join(str(part) for part in (self.dtype, self.element) if part)})"

    @property
    def is_numeric(self) -> bool:
        """Whether the value is a tensor that an executable could have."""
        return self.kind is Kind.TENSOR and self.dtype in DTYPES


def parse_type(text: str, depth: int = 0) -> ValueType:
    """Parse a type. Raises ValueError for any other text.

    >>> parse_type("map(int64,tensor(float32))").element
    ValueType(kind=<Kind.TENSOR: 'tensor'>, dtype='float32', element=None)
    """
    match = _TYPE.fullmatch(text)
    if not match or depth >= MAX_TYPE_DEPTH:
        raise ValueError(f"{text[:60]!r} is no type of a value")
    kind, inner = Kind(match.group(1)), match.group(2)
    if kind is Kind.TENSOR:
        return ValueType(kind, _element(inner))
    if kind is Kind.MAP:
        key, _, value = inner.partition(",")
        return ValueType(kind, _element(key), parse_type(value, depth + 1))
    return ValueType(kind, element=parse_type(inner, depth + 1))


def _element(name: str) -> str:
    if name not in ELEMENTS:
        raise ValueError(f"{name[:60]!r} is no type of an element")
    return name

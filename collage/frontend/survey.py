"""A survey of a model's file before any library parses it.

ONNX's readers expand a file: they inline functions, make sparse weights dense, and open other files by
name. This survey walks over the bytes once (`frontend.protobuf_wire`) and expands nothing. It refuses
files that are no model or would exceed the limits: it counts the nodes after inlining, compares the data of
every tensor with its shape, and lists every tensor with external data (in bodies, functions, attributes,
training). The import process bounds the rest, e.g. the size of folded constants
(`frontend.isolated_import`).

Complexity: a few operations per field; data of tensors is skipped, so its size does not matter.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from collage.errors import ModelError
from collage.frontend.inlined_size import Calls, FunctionId, inlined_nodes
from collage.frontend.onnx_schema import SCHEMA, FieldSchema
from collage.frontend.protobuf_wire import BYTES, VARINT, WireField, WireReader, signed
from collage.frontend.tensor_fields import (
    DATA_FIELDS,
    ELEMENT_BITS,
    STRING,
    ExternalTensor,
    TensorFields,
    bytes_of,
    external_tensor,
    mismatch,
    require_elements,
)
from collage.import_limits import MEMORY, NODES, ImportLimits

MAX_STRING_BYTES = 1 << 20
MAX_MODEL_DEPTH = 32
"""Nesting depth of graphs; parsers have a similar limit."""
MAX_RANK = 64
MAX_MESSAGES = 2_000_000
DENSE_SHARE = 8
"""Dense forms of sparse tensors may take one such part of the memory limit."""

_LISTS = frozenset(
    number
    for number, entry in SCHEMA["AttributeProto"].items()
    if entry.is_repeated and not entry.message
)
"""Numbers of an attribute's lists of numbers and short texts, of which a survey needs nothing."""


@dataclass(frozen=True)
class Survey:
    """Contents of a model: number of nodes after inlining, and tensors in other files."""

    nodes: int
    external: tuple[ExternalTensor, ...]


def survey(data: bytes, limits: ImportLimits) -> Survey:
    """Survey the bytes of an ONNX file; `data` may be a mapped file.

    Raises:
        ModelError: no ONNX model, an inconsistent model, or a model beyond the limits.
    """
    return _Surveyor(data, limits).survey()


class _Surveyor:
    def __init__(self, data: bytes, limits: ImportLimits) -> None:
        self._reader, self._limits = WireReader(data), limits
        self._data = data
        self._messages = self._nodes = self._dense_bytes = 0
        self._external: list[ExternalTensor] = []
        self._functions: dict[FunctionId, Calls] = {}
        self._calls: Calls = Counter()
        self._depth = 0

    def survey(self) -> Survey:
        fields = {entry.name for entry, _ in self._walk("ModelProto", 0, len(self._data))}
        if "graph" not in fields:
            raise ModelError("not an ONNX model (no graph)")
        nodes = inlined_nodes(self._calls, self._functions)
        self._require_nodes(nodes, " once its functions are expanded")
        return Survey(nodes, tuple(self._external))

    def _walk(self, message: str, start: int, end: int) -> Iterator[tuple[FieldSchema, WireField]]:
        """Yield the known fields of a message without nested messages; visit those with."""
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise ModelError(f"it has more than {MAX_MESSAGES} parts, which no real model has")
        schema, single = SCHEMA[message], set()
        runs = _LISTS if message == "AttributeProto" else frozenset()
        for wire_field in self._reader.fields(start, end, runs):
            entry = schema.get(wire_field.number)
            if entry is None or (entry.message and wire_field.kind != BYTES):
                continue  # a parser treats it as an unknown field
            if entry.message:
                if not entry.is_repeated:
                    if wire_field.number in single:
                        raise ModelError(f"it is damaged: a second {entry.name} in one {message}")
                    single.add(wire_field.number)
                self._visit(entry.message, wire_field)
            elif entry.is_text and wire_field.kind == BYTES:
                self._text(wire_field)
            yield entry, wire_field

    def _visit(self, message: str, wire_field: WireField) -> None:
        if message == "TensorProto":
            self._tensor(wire_field)
        elif message == "SparseTensorProto":
            self._sparse(wire_field)
        elif message == "NodeProto":
            self._node(wire_field)
        elif message == "FunctionProto":
            self._function(wire_field)
        else:
            is_nesting = message in ("GraphProto", "TypeProto")
            self._depth += is_nesting
            if self._depth > MAX_MODEL_DEPTH:
                raise ModelError(f"its graphs or types are nested more than {MAX_MODEL_DEPTH} deep")
            for entry, inner in self._walk(message, wire_field.start, wire_field.end):
                if entry.is_bytes:
                    self._require_short(inner)
            self._depth -= is_nesting

    def _node(self, wire_field: WireField) -> None:
        self._nodes += 1
        self._require_nodes(self._nodes)
        texts = dict.fromkeys(("domain", "op_type", "overload"), "")
        for entry, inner in self._walk("NodeProto", wire_field.start, wire_field.end):
            if entry.name in texts:
                texts[entry.name] = self._text(inner)
        domain = "" if texts["domain"] == "ai.onnx" else texts["domain"]
        self._calls[domain, texts["op_type"], texts["overload"]] += 1

    def _function(self, wire_field: WireField) -> None:
        caller_calls, self._calls = self._calls, Counter()
        texts = dict.fromkeys(("domain", "name", "overload"), "")
        for entry, inner in self._walk("FunctionProto", wire_field.start, wire_field.end):
            if entry.name in texts:
                texts[entry.name] = self._text(inner)
        domain = "" if texts["domain"] == "ai.onnx" else texts["domain"]
        identity = (domain, texts["name"], texts["overload"])
        if identity in self._functions:
            raise ModelError(f"it defines the function {texts['name']!r} twice")
        self._functions[identity], self._calls = self._calls, caller_calls

    def _require_nodes(self, nodes: int, when: str = "") -> None:
        if nodes > self._limits.nodes:
            count = "more than 10**18" if nodes > 10**18 else str(nodes)
            raise ModelError(
                f"it has {count} nodes{when}, more than the {self._limits.nodes} that are read; set"
                f" {NODES} higher if you trust the model"
            )

    def _tensor(self, wire_field: WireField) -> TensorFields:
        tensor = self._read_tensor(wire_field)
        count = self._count(tensor.name, tensor.dims)
        bits = ELEMENT_BITS.get(tensor.data_type)
        if bits is None and tensor.data_type != STRING:
            raise ModelError(f"tensor {tensor.name!r} has the unknown type {tensor.data_type}")
        size_bytes = bytes_of(count, bits or 0)
        if tensor.is_external:
            if bits is None:
                raise ModelError(f"tensor {tensor.name!r} has strings in another file")
            self._external.append(external_tensor(tensor, size_bytes))
        elif tensor.raw_bytes is not None:
            if bits is None or tensor.raw_bytes != size_bytes:
                raise mismatch(tensor, f"{tensor.raw_bytes} bytes", f"{size_bytes}")
        else:
            require_elements(tensor, count, bits)
        return tensor

    def _read_tensor(self, wire_field: WireField) -> TensorFields:
        tensor = TensorFields()
        for entry, inner in self._walk("TensorProto", wire_field.start, wire_field.end):
            match entry.name:
                case "name":
                    tensor.name = self._text(inner)
                case "dims":
                    tensor.dims += [signed(number) for number in self._reader.varints(inner)]
                case "data_type" if inner.kind == VARINT:
                    tensor.data_type = inner.value
                case "data_location" if inner.kind == VARINT:
                    tensor.is_external = inner.value == onnx.TensorProto.EXTERNAL
                case "raw_data" if inner.kind == BYTES:
                    tensor.raw_bytes = inner.end - inner.start
                case "string_data" if inner.kind == BYTES:
                    self._require_short(inner)
                    tensor.elements["string_data"] += 1
                case "external_data" if inner.kind == BYTES:
                    tensor.entries.append(self._pair(inner))
                case name if name in DATA_FIELDS:
                    tensor.elements[name] += self._elements(name, inner)
        return tensor

    def _elements(self, name: str, wire_field: WireField) -> int:
        """Count the elements of a repeated field of numbers, packed or not."""
        if wire_field.kind != BYTES:
            return 1
        size = DATA_FIELDS[name]
        if size:
            return (wire_field.end - wire_field.start) // size
        packed = np.frombuffer(
            self._data, np.uint8, wire_field.end - wire_field.start, wire_field.start
        )
        return int(np.count_nonzero(packed < 0x80))

    def _sparse(self, wire_field: WireField) -> None:
        self._messages += 1
        dims: list[int] = []
        bits = 0
        for entry, inner in self._walk_sparse(wire_field):
            if entry == "dims":
                dims += [signed(number) for number in self._reader.varints(inner)]
            elif entry == "values":
                bits = ELEMENT_BITS.get(self._tensor(inner).data_type, 0)
            else:
                self._tensor(inner)
        self._dense_bytes += self._count("of sparse weights", dims) * bits // 8
        limit = self._limits.memory_bytes // DENSE_SHARE
        if self._dense_bytes > limit:
            raise ModelError(
                f"its sparse tensors take {_size(self._dense_bytes)} when dense, more than"
                f" {_size(limit)}; set {MEMORY} to {DENSE_SHARE} times what they take if you trust the"
                " model"
            )

    def _walk_sparse(self, wire_field: WireField) -> Iterator[tuple[str, WireField]]:
        names = set()
        for inner in self._reader.fields(wire_field.start, wire_field.end):
            entry = SCHEMA["SparseTensorProto"].get(inner.number)
            if entry is None or (entry.message and inner.kind != BYTES):
                continue
            if entry.message and entry.name in names:
                raise ModelError(f"it is damaged: a second {entry.name} in one sparse tensor")
            names.add(entry.name)
            yield entry.name, inner

    def _pair(self, wire_field: WireField) -> tuple[str, str]:
        texts = {"key": "", "value": ""}
        for entry, inner in self._walk("StringStringEntryProto", wire_field.start, wire_field.end):
            texts[entry.name] = self._text(inner)
        return texts["key"], texts["value"]

    def _text(self, wire_field: WireField) -> str:
        self._require_short(wire_field)
        content = self._data[wire_field.start : wire_field.end]
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise ModelError(f"it is damaged: the name {content[:60]!r} is no UTF-8") from None

    def _require_short(self, wire_field: WireField) -> None:
        if wire_field.kind == BYTES and wire_field.end - wire_field.start > MAX_STRING_BYTES:
            raise ModelError(
                f"it holds a text of {wire_field.end - wire_field.start} bytes; names and string"
                f" attributes may have {MAX_STRING_BYTES}: weights belong into tensors"
            )

    def _count(self, name: str, dims: list[int]) -> int:
        if len(dims) > MAX_RANK:
            raise ModelError(f"tensor {name!r} has {len(dims)} dimensions, more than {MAX_RANK}")
        if min(dims, default=0) < 0:
            raise ModelError(f"tensor {name!r} has a negative dimension: {dims}")
        return prod(dims)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.3g} GiB"

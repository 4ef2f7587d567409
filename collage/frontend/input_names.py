"""Names of a model's inputs, read without parsing the model.

An initialiser that is also an input has a default, which callers may override from version 4 of the file
format on. Older files list every initialiser among the inputs.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from collage.frontend.model_files import open_model
from collage.frontend.protobuf_wire import BYTES, VARINT, WireField, WireReader

FIRST_OVERRIDABLE_IR = 4
"""First version of the file format whose initialisers can be overridden by inputs."""
_IR_VERSION, _GRAPH = 1, 7
_INITIALIZER, _INPUT, _SPARSE_INITIALIZER = 5, 11, 15
_VALUE_NAME, _TENSOR_NAME, _SPARSE_VALUES = 1, 8, 1
_TENSOR_DATA = frozenset({4, 5, 6, 7, 10, 11})
"""Fields of a tensor with its numbers, which need not be packed."""


@dataclass(frozen=True)
class InputNames:
    """Names of the inputs of a model, in its order.

    Attributes:
        required: inputs without a default.
        optional: inputs with a default that callers may override.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def input_names(path: Path) -> InputNames:
    """Return the names of the inputs of the model at `path`. Raises ModelError."""
    with open_model(path) as files:
        reader = WireReader(files.data)
        names: dict[str, None] = {}
        weights: set[str] = set()
        version = 0
        for field in reader.fields(0, len(files.data)):
            if field.number == _IR_VERSION and field.kind == VARINT:
                version = field.value
            elif field.number == _GRAPH and field.kind == BYTES:
                names.update(dict.fromkeys(_value_names(reader, field)))
                weights.update(_weight_names(reader, field))
    defaults = [name for name in names if name in weights]
    return InputNames(
        tuple(name for name in names if name not in weights),
        tuple(defaults if version >= FIRST_OVERRIDABLE_IR else ()),
    )


def _value_names(reader: WireReader, graph: WireField) -> Iterator[str]:
    for value in _messages(reader, _INPUT, graph):
        yield from _texts(reader, _VALUE_NAME, value)


def _weight_names(reader: WireReader, graph: WireField) -> Iterator[str]:
    for tensor in _messages(reader, _INITIALIZER, graph):
        yield from _texts(reader, _TENSOR_NAME, tensor, _TENSOR_DATA)
    for sparse in _messages(reader, _SPARSE_INITIALIZER, graph):
        for tensor in _messages(reader, _SPARSE_VALUES, sparse):
            yield from _texts(reader, _TENSOR_NAME, tensor, _TENSOR_DATA)


def _messages(
    reader: WireReader, number: int, message: WireField, runs: Set[int] = frozenset()
) -> Iterator[WireField]:
    for field in reader.fields(message.start, message.end, runs):
        if field.number == number and field.kind == BYTES:
            yield field


def _texts(
    reader: WireReader, number: int, message: WireField, runs: Set[int] = frozenset()
) -> list[str]:
    return [
        reader.data[field.start : field.end].decode(errors="replace")
        for field in _messages(reader, number, message, runs)
    ]

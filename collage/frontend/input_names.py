"""Names of a model's inputs, read without parsing the model."""

from collections.abc import Iterator
from pathlib import Path

from collage.frontend.model_files import open_model
from collage.frontend.protobuf_wire import BYTES, WireField, WireReader

_GRAPH, _INITIALIZER, _INPUT = 7, 5, 11
_TENSOR_NAME, _VALUE_NAME = 8, 1


def input_names(path: Path) -> tuple[str, ...]:
    """Return the names of the inputs of the model at `path`, without its weights. Raises ModelError."""
    with open_model(path) as files:
        reader = WireReader(files.data)
        names: dict[str, None] = {}
        weights: set[str] = set()
        for graph in _messages(reader, _GRAPH, 0, len(files.data)):
            for value in _messages(reader, _INPUT, graph.start, graph.end):
                names.update(dict.fromkeys(_texts(reader, _VALUE_NAME, value)))
            for tensor in _messages(reader, _INITIALIZER, graph.start, graph.end):
                weights.update(_texts(reader, _TENSOR_NAME, tensor))
    return tuple(name for name in names if name not in weights)


def _messages(reader: WireReader, number: int, start: int, end: int) -> Iterator[WireField]:
    for field in reader.fields(start, end):
        if field.number == number and field.kind == BYTES:
            yield field


def _texts(reader: WireReader, number: int, message: WireField) -> list[str]:
    return [
        reader.data[field.start : field.end].decode(errors="replace")
        for field in _messages(reader, number, message.start, message.end)
    ]

"""The schema of ONNX's protobuf messages, from ONNX's own description."""

from collections.abc import Mapping
from typing import NamedTuple

import onnx


class FieldSchema(NamedTuple):
    """Schema of a field: its name, the type of a nested message, and its encoding."""

    name: str
    message: str
    is_text: bool
    is_bytes: bool
    is_repeated: bool


Schema = Mapping[str, Mapping[int, FieldSchema]]


def _schema() -> Schema:
    """Return the fields of all messages from ONNX's own protobuf description."""
    schema: dict[str, dict[int, FieldSchema]] = {}
    pending = [onnx.ModelProto.DESCRIPTOR]
    while pending:
        message = pending.pop()
        if message.name in schema:
            continue
        entries = schema[message.name] = {}
        for descriptor in message.fields:
            inner = descriptor.message_type
            is_text = descriptor.type == descriptor.TYPE_STRING and descriptor.name != "doc_string"
            entries[descriptor.number] = FieldSchema(
                descriptor.name,
                inner.name if inner else "",
                is_text,
                descriptor.type == descriptor.TYPE_BYTES,
                is_repeated=bool(descriptor.is_repeated),
            )
            if inner:
                pending.append(inner)
    return schema


SCHEMA = _schema()
"""Fields by number, for each message of a model by name."""

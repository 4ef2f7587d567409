"""Read the structure of a protobuf without making its messages.

A parser turns two bytes into a message of a hundred, so a small file can fill a machine's memory before
anything in it can be judged. This reader makes nothing: it walks over the bytes, skips what is long, and
stops at a limit of fields. A parser may understand more than one encoding of the same thing; those that
no serialiser writes (groups, field 0, numbers above 64 bits) are refused, so that both see one model.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import NamedTuple

from collage.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 20_000_000
"""About half a minute of walking; the largest models that are known have under a million."""


class Field(NamedTuple):
    """One field of a message: `value` of a VARINT, else the range [start, end) of its bytes."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class WireReader:
    """Walks over the messages of one buffer. Raises ModelError where it is not well formed."""

    def __init__(self, data: bytes, max_fields: int = _MAX_FIELDS) -> None:
        self.data = data
        self._left = max_fields

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message in the bytes [start, end)."""
        data, place = self.data, start
        while place < end:
            self._left -= 1
            if self._left < 0:
                raise ModelError("it has too many fields to be a model")
            tag = data[place]
            place += 1
            if tag >= 0x80:
                tag, place = self._varint(place - 1, end)
            number, kind = tag >> 3, tag & 7
            value, first = 0, place
            if kind == VARINT:
                value, place = self._varint(place, end)
            elif kind == BYTES:
                length, first = self._varint(place, end)
                place = first + length
            elif kind in (FIXED64, FIXED32):
                place += 8 if kind == FIXED64 else 4
            else:
                raise _broken()
            if place > end or not number:
                raise _broken()
            yield Field(number, kind, value, first, place)

    def varints(self, field: Field) -> list[int]:
        """Return the numbers of a repeated field, which may be packed."""
        if field.kind == VARINT:
            return [field.value]
        numbers, place = [], field.start
        while place < field.end:
            value, place = self._varint(place, field.end)
            numbers.append(value)
        return numbers

    def _varint(self, place: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while place < end:
            byte = self.data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                return value, place
            shift += 7
            if shift > 63:
                break
        raise _broken()


def signed(value: int) -> int:
    """Return a varint as the int64 that it stands for.

    >>> signed(5), signed((1 << 64) - 1)
    (5, -1)
    """
    return value - (1 << 64) if value >> 63 else value


def _broken() -> ModelError:
    return ModelError("not an ONNX model, or truncated")

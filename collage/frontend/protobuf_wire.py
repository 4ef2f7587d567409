"""Reading of a protobuf's structure without parsing its messages.

A parser turns two bytes into a message of a hundred, so a small file can fill a machine's memory before
any check. This reader allocates nothing: it walks over the bytes, skips long fields, and stops at a limit
of fields. A parser may accept several encodings of the same content. Encodings that no serialiser writes
(groups, field 0, numbers above 64 bits) are refused, so that reader and parser agree.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import NamedTuple

from collage.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 20_000_000
"""About half a minute of reading; the largest known models have under a million fields."""


class WireField(NamedTuple):
    """One field of a message: `value` of a VARINT, else the range [start, end) of its bytes."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class WireReader:
    """A reader of the messages in one buffer. Raises ModelError for malformed data."""

    def __init__(self, data: bytes, max_fields: int = _MAX_FIELDS) -> None:
        self.data = data
        self._remaining_fields = max_fields

    def fields(self, start: int, end: int) -> Iterator[WireField]:
        """Yield the fields of the message in the bytes [start, end)."""
        data, place = self.data, start
        while place < end:
            self._remaining_fields -= 1
            if self._remaining_fields < 0:
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
            yield WireField(number, kind, value, first, end=place)

    def varints(self, field: WireField) -> list[int]:
        """Return the numbers of a repeated field, packed or not."""
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
    """Return a varint as a signed 64-bit integer.

    >>> signed(5), signed((1 << 64) - 1)
    (5, -1)
    """
    return value - (1 << 64) if value >> 63 else value


def _broken() -> ModelError:
    return ModelError("not an ONNX model, or truncated")

"""Reading of a protobuf's structure without parsing its messages.

A parser turns two bytes into a message of a hundred, so a small file can fill a machine's memory before
any check. This reader allocates nothing: it walks over the bytes, skips long fields, and stops at a limit
of fields. A parser may accept several encodings of the same content. Encodings that no serialiser writes
(groups, field 0, numbers above 64 bits) are refused, so that reader and parser agree.

ONNX's attributes have lists that are not packed: every number of a tree ensemble is a field, tens of
millions in a trained one. A regular expression walks over such a run, at a hundred times the speed of a loop
in Python. Its repetition is possessive, so that it keeps no state per field.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

import functools
import re
from collections.abc import Iterator, Set
from typing import NamedTuple

from collage.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_FIELDS = 20_000_000
"""About half a minute of reading; the largest known models have under a million fields outside of runs."""
_CONTENT = {
    VARINT: rb"(?:[\x80-\xff]{0,8}[\x00-\x7f]|[\x80-\xff]{9}[\x00\x01])",
    FIXED64: rb".{8}",
    BYTES: b"(?:%s)" % b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(0x80)),
    FIXED32: rb".{4}",
}
"""Patterns of a field's bytes behind its tag, by kind: numbers of 64 bits, texts below 128 bytes."""


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

    def fields(self, start: int, end: int, runs: Set[int] = frozenset()) -> Iterator[WireField]:
        """Yield the fields of the message in the bytes [start, end).

        Args:
            runs: numbers below 16 of repeated fields, of which the first of each run suffices; default
                none.
        """
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
            if number in runs and (run := _run(number << 3 | kind).match(data, place, end)):
                place = run.end()

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


@functools.cache
def _run(tag: int) -> re.Pattern[bytes]:
    """Return the pattern of fields one after the other that all have this tag, of one byte."""
    field = re.escape(bytes([tag])) + _CONTENT[tag & 7]
    return re.compile(b"(?:%s)++" % field, re.DOTALL)


def signed(value: int) -> int:
    """Return a varint as a signed 64-bit integer.

    >>> signed(5), signed((1 << 64) - 1)
    (5, -1)
    """
    return value - (1 << 64) if value >> 63 else value


def _broken() -> ModelError:
    return ModelError("not an ONNX model, or truncated")

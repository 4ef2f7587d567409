"""JSON whose cost is known before it is parsed.

Python's objects cost up to 32 times their text: `[],` is three bytes and a list of 56. So what a text
holds is counted first, by searching bytes, which costs nothing: commas, brackets, quotes. A request of
a model has as many as its signature says; a text with more is refused unparsed. Characters within
strings are counted too, which refuses a few odd names and admits nothing. The depth is counted on the
brackets outside of strings. Characters beyond ASCII, one of which would make Python keep four bytes for
each character of the whole text, become escapes.
"""

import json
import re
from dataclasses import dataclass

import numpy as np

from collage.errors import InputError

BYTES_PER_BYTE = 32
"""What a byte of JSON costs at most once it is parsed, of any text."""
MAX_BACKSLASHES = 8192
MAX_FOREIGN_BYTES = 8192

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_FOREIGN = re.compile(rb"[\x80-\xff]+")
_ASCII = bytes(range(0x80))
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_CLOSING = np.frombuffer(b"]}", np.uint8)


@dataclass(frozen=True)
class JsonLimits:
    """How many of each a text may have; `depth` is of lists and objects within each other."""

    values: int
    lists: int
    objects: int
    strings: int
    depth: int


def parse_json(text: bytes | bytearray, limits: JsonLimits) -> object:
    """Parse a text. Raises InputError where it is no JSON, or has more than the limits allow."""
    counted = [
        (b",", limits.values, "values"), (b"[", limits.lists, "lists"), (b"]", limits.lists, "lists"),
        (b"{", limits.objects, "objects"), (b"}", limits.objects, "objects"),
        (b'"', 2 * limits.strings, "strings"), (b"\\", MAX_BACKSLASHES, "escapes"),
    ]  # fmt: skip
    for character, limit, subject in counted:
        if text.count(character) > limit:
            raise InputError(f"the JSON has more {subject} than a request of this model needs")
    _check_depth(text, limits.depth)
    try:
        return json.loads(_ascii(text))
    except ValueError as error:
        raise InputError(f"the request is no inference request: {error}") from None


def _check_depth(text: bytes | bytearray, limit: int) -> None:
    if text.count(b"[") + text.count(b"{") <= limit:
        return
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    steps = np.where(np.isin(np.frombuffer(brackets, np.uint8), _CLOSING), -1, 1)
    if np.cumsum(steps).max(initial=0) > limit:
        raise InputError(f"the JSON is nested deeper than {limit} levels")


def _ascii(text: bytes | bytearray) -> str:
    if text.isascii():
        return str(text, "ascii")
    if len(text.translate(None, _ASCII)) > MAX_FOREIGN_BYTES:
        raise InputError(
            f"the JSON has more than {MAX_FOREIGN_BYTES} bytes beyond ASCII; write them as \\u escapes"
        )
    return str(_FOREIGN.sub(_escaped, text), "ascii")


def _escaped(match: re.Match[bytes]) -> bytes:
    return json.dumps(match[0].decode())[1:-1].encode()

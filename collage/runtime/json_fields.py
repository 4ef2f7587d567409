"""Reader of untrusted JSON: bounded in size and depth, each field checked on access.

A `Field` is a value with its path, so an error names the field: "functions[0].inputs[1].shape is ...,
where ... is needed". Unread fields are not checked.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

MAX_JSON_DEPTH = 64
"""Largest depth of nested lists and objects; Collage's own documents have less than ten."""
MAX_TEXT_LENGTH = 4096
"""Characters of a text field."""
_SHOWN = 60
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FieldError(ValueError):
    """A field is missing or invalid; the message has its path, its value and the required kind."""


def parse_json(data: bytes, limit_bytes: int) -> "Field":
    """Parse a document.

    Raises:
        FieldError: too large, too deep, or no JSON.
    """
    value = load_json(data, limit_bytes)
    _check_depth(value)
    return Field(value, "")


def load_json(
    data: bytes | str, limit_bytes: int, constants: Mapping[str, float] = MappingProxyType({})
) -> Any:
    """Return the value of an untrusted JSON text.

    Args:
        data: JSON text.
        limit_bytes: size limit, in bytes.
        constants: values of accepted extra constants such as `Infinity`; default none.

    Raises:
        FieldError: too large, nested more deeply than Python calls itself, or no JSON.
    """
    if len(data) > limit_bytes:
        raise FieldError(f"it has {len(data)} bytes, and at most {limit_bytes} are read")

    def constant(name: str) -> float:
        if name not in constants:
            raise ValueError(f"{name} is no number")
        return constants[name]

    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, parse_constant=constant)
    except RecursionError:
        raise FieldError("it is nested too deeply") from None
    except ValueError as error:  # of UTF-8, of JSON, or a number of too many digits
        raise FieldError(f"it is no JSON: {str(error)[:200]}") from None


def is_digest(text: str) -> bool:
    """Tell whether `text` looks like a SHA-256 in hex."""
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a JSON document, and the way to it."""

    value: Any
    path: str

    def __getitem__(self, name: str) -> "Field":
        """Return a field of an object. Raises FieldError if it is missing."""
        field = self.get(name)
        if field is None:
            raise FieldError(f"{_joined(self.path, name)} is missing")
        return field

    def get(self, name: str) -> "Field | None":
        """A field of an object, or None."""
        value = self._of(dict, "an object")
        return Field(value[name], _joined(self.path, name)) if name in value else None

    def items(self) -> "Iterator[Field]":
        """The elements of a list."""
        for number, value in enumerate(self._of(list, "a list")):
            yield Field(value, f"{self.path}[{number}]")

    def entries(self) -> "Iterator[tuple[Field, Field]]":
        """Names and values of an object."""
        for name, value in self._of(dict, "an object").items():
            yield Field(name, f"a name in {self.path}"), Field(value, _joined(self.path, name))

    def text(self, *, empty: bool = False) -> str:
        """A text of at most MAX_TEXT_LENGTH characters."""
        value: str = self._of(str, "a text")
        if len(value) > MAX_TEXT_LENGTH or not (value or empty) or "\0" in value:
            raise self.fault(f"a text of {int(not empty)} to {MAX_TEXT_LENGTH} characters")
        return value

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(element.text() for element in self.items())

    def one_of(self, choices: Collection[str]) -> str:
        """One of the texts in `choices`."""
        value = self.text(empty=True)
        if value not in choices:
            raise self.fault(f"one of {', '.join(sorted(choices))}")
        return value

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.fault(f"a whole number from {low} to {high}")
        return self.value

    def number(self) -> float:
        """A finite number that is not negative."""
        if type(self.value) not in (int, float) or not 0 <= self.value < math.inf:
            raise self.fault("a number that is not negative")
        return float(self.value)

    def any_number(self) -> float:
        """A finite number."""
        if type(self.value) not in (int, float) or not -math.inf < self.value < math.inf:
            raise self.fault("a number")
        return float(self.value)

    def flag(self) -> bool:
        """True or false."""
        value: bool = self._of(bool, "true or false")
        return value

    def file_name(self) -> str:
        """The name of a file in the same folder."""
        value = self.text()
        if not _FILE_NAME.fullmatch(value):
            raise self.fault("the name of a file without a folder")
        return value

    def digest(self) -> str:
        """A SHA-256 in hex."""
        value = self.text(empty=True)
        if not is_digest(value):
            raise self.fault("a SHA-256 of 64 hexadecimal digits")
        return value

    def fault(self, needed: str) -> FieldError:
        """Return an error with the field's path, its value and the required kind."""
        shown = repr(self.value) if isinstance(self.value, str | int | float | None) else ""
        if len(shown) > _SHOWN or not shown:
            shown = _KINDS.get(type(self.value), "a value")
        return FieldError(f"{self.path or 'the document'} is {shown}, where {needed} is needed")

    def _of(self, kind: type, needed: str) -> Any:
        if type(self.value) is not kind:
            raise self.fault(needed)
        return self.value


_KINDS = {dict: "an object", list: "a list", str: "a long text", int: "a long number"}


def _joined(path: str, name: str) -> str:
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    return f"{path}.{shown}" if path else shown


def _check_depth(value: object) -> None:
    """Check the depth level by level, without recursion."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for node in level
            if isinstance(node, dict | list)
            for inner in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise FieldError(f"it is nested more than {MAX_JSON_DEPTH} deep")

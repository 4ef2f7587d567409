"""Validation of stored records: the one reader of JSON from an untrusted store.

A store outlives versions and has many writers, so every record is validated before use: the text is bounded
JSON, and every field has its type, range and length. There are three outcomes. A valid record becomes a
value. A damaged one is a miss: it is counted, and one line of the log has the first reason and the count of
a batch. A record of an unknown kind is skipped without a message, so that machines of two versions can share
a store during an upgrade.

A characteristic field tells the kind of a record (`{"kernel": ...}`, `{"over": ...}`); additional fields are
ignored, for the same reason. Reading is linear in the size of the text.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from collage.runtime.json_fields import FieldError, is_digest, load_json

MAX_RECORD_BYTES = 16 << 20
"""Size limit of one record, in bytes; a search checkpoint of a large model has some hundred KiB."""

MAX_RECORD_TEXT = 1 << 16
"""Length limit of one field, in characters; Collage writes shorter ones."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class RecordError(ValueError):
    """An invalid record; the message names the field, never its content."""


def parse_json(data: bytes | str, *, infinities: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        infinities: True allows `Infinity` as a number.

    Raises:
        RecordError: the text is too long, too deeply nested, or no JSON.
    """
    try:
        return load_json(data, MAX_RECORD_BYTES, {"Infinity": math.inf} if infinities else {})
    except FieldError as error:
        raise RecordError(str(error)) from None


def parse_object(data: bytes | str, *, infinities: bool = False) -> dict[str, Any]:
    """Return the object of a JSON text. Raises RecordError for another value."""
    value = parse_json(data, infinities=infinities)
    if not isinstance(value, dict):
        raise RecordError("it is no object")
    return value


class Fields:
    """The fields of one record; every accessor raises RecordError for an invalid field.

    >>> Fields({"seconds": 2e-3}).number("seconds", minimum=1e-9)
    0.002
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry

    def text(self, name: str, default: str | None = None, maximum: int = MAX_RECORD_TEXT) -> str:
        """Return a text within the length limit; `default` if the field is absent."""
        if default is not None and name not in self.entry:
            return default
        value = self._present(name)
        if not isinstance(value, str) or len(value) > maximum:
            self._refuse(name, "text")
        return value

    def digest(self, name: str) -> str:
        """Return a SHA-256 in hex."""
        value = self.text(name)
        if not is_digest(value):
            self._refuse(name, "a SHA-256")
        return value

    def number(
        self,
        name: str,
        default: float | None = None,
        minimum: float = 0.0,
        maximum: float = math.inf,
    ) -> float:
        """Return a number within the limits; `default` if the field is absent."""
        if default is not None and name not in self.entry:
            return default
        return self._number(name, self._present(name), minimum, maximum)

    def numbers(
        self, name: str, minimum: float = 0.0, maximum: float = math.inf, count: int = 1 << 16
    ) -> tuple[float, ...]:
        """Return a list of up to `count` numbers within the limits."""
        return tuple(
            self._number(name, value, minimum, maximum) for value in self.items(name, count)
        )

    def items(self, name: str, count: int = 1 << 16) -> list[Any]:
        """Return a list of up to `count` values, unchecked."""
        value = self._present(name)
        if not isinstance(value, list) or len(value) > count:
            self._refuse(name, "a list")
        return value

    def value(self, name: str) -> Any:
        """Return the unchecked value of a required field."""
        return self._present(name)

    def _present(self, name: str) -> Any:
        if name not in self.entry:
            raise RecordError(f"the field {name!r} is missing")
        return self.entry[name]

    def _number(self, name: str, value: object, minimum: float, maximum: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, "a number")
        try:
            number = float(value)
        except OverflowError:
            self._refuse(name, "a number")
        if not minimum <= number <= maximum:
            self._refuse(name, f"in [{minimum:g}, {maximum:g}]")
        return number

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise RecordError(f"the field {name!r} is not {expected}")


Parse = Callable[[Fields], T]
"""Parser of one kind of record; raises ValueError for invalid fields."""


@dataclass(frozen=True, slots=True)
class Checked(Generic[T]):
    """The valid records of one batch, in order, and the numbers of damaged and unsigned ones."""

    values: tuple[T, ...]
    damaged: int
    unsigned: int = 0


def check_records(
    entries: Iterable[dict[str, Any] | None],
    kinds: Mapping[str, Parse[T]],
    source: str,
    is_signed: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Checked[T]:
    """Check one batch of records.

    Args:
        entries: objects; None is a line without an object.
        kinds: parser of each kind, by its characteristic field.
        source: origin of the records for the log, e.g. "costs of 1a2b".
        is_signed: predicate of signed entries (`collage.store.record_keys`); None accepts all.
    """
    values: list[T] = []
    reasons: list[str] = []
    unsigned = 0
    for entry in entries:
        if entry is None:
            reasons.append("a line that does not check")
            continue
        parse = next((parse for field, parse in kinds.items() if field in entry), None)
        if parse is None:
            continue  # a kind of a newer version
        if is_signed and not is_signed(entry):
            unsigned += 1
            continue
        try:
            values.append(parse(Fields(entry)))
        except (ValueError, RecursionError) as error:
            reasons.append(str(error) if isinstance(error, RecordError) else type(error).__name__)
    report_damage(source, reasons)
    if unsigned:
        _report_unsigned(source, unsigned)
    return Checked(tuple(values), len(reasons), unsigned)


def report_damage(source: str, reasons: list[str]) -> None:
    """Log the damaged records of one batch in one line."""
    if reasons:
        log.warning(
            "%s: %d damaged records count as absent; the first: %s",
            source,
            len(reasons),
            reasons[0],
        )


@functools.lru_cache(maxsize=1024)
def _report_unsigned(source: str, count: int) -> None:
    """Log once for each source and count: a shared store may have such records in every batch."""
    log.warning(
        "%s: %d records count as absent, for no key that is known here signed them; machines that may run "
        "each other's code share one (COLLAGE_RECORD_KEY, see docs/store.md)",
        source,
        count,
    )

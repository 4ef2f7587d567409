"""Records as they are read: JSON that anybody may have written, checked in this one place.

A store outlives versions and is written by many, so a reader believes no record before it was checked:
the text is bounded JSON, every field has its type, its range and its length. Three outcomes are all
there are. A record that fits is a value. A damaged one is a miss: it is counted, and the first of a
batch is logged with the number of all, never a line each. A kind that this version does not know is
skipped without a word, so that machines of two versions may share a store while they are upgraded.

A kind of line is known by one field that only it has (`{"kernel": ...}`, `{"over": ...}`), and further
fields are ignored, for the same reason. Reading is linear in the size of the text.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from collage.runtime.json_fields import FieldError, is_digest, load_json

MAX_BYTES = 16 << 20
"""Of one record: a search checkpoint of a large model has some hundred KiB."""

MAX_TEXT = 1 << 16
"""Characters of one field; what is longer was written by nobody here."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class RecordError(ValueError):
    """A record is not what it should be; says which field, never the field's content."""


def parse_json(data: bytes | str, *, infinities: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        infinities: whether `Infinity` may stand for a number.

    Raises:
        RecordError: the text is too long, nested too deeply, or no JSON.
    """
    try:
        return load_json(data, MAX_BYTES, {"Infinity": math.inf} if infinities else {})
    except FieldError as error:
        raise RecordError(str(error)) from None


def parse_object(data: bytes | str, *, infinities: bool = False) -> dict[str, Any]:
    """Return the object of a JSON text. Raises RecordError where it is none."""
    found = parse_json(data, infinities=infinities)
    if not isinstance(found, dict):
        raise RecordError("it is no object")
    return found


class Fields:
    """The fields of one record; every accessor raises RecordError for what does not fit.

    >>> Fields({"seconds": 2e-3}).number("seconds", least=1e-9)
    0.002
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry

    def text(self, name: str, default: str | None = None, most: int = MAX_TEXT) -> str:
        """Return a text of at most `most` characters; `default` where the field is absent."""
        if default is not None and name not in self.entry:
            return default
        value = self._present(name)
        if not isinstance(value, str) or len(value) > most:
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
        least: float = 0.0,
        most: float = math.inf,
    ) -> float:
        """Return a number in [least, most]; `default` where the field is absent."""
        if default is not None and name not in self.entry:
            return default
        return self._number(name, self._present(name), least, most)

    def numbers(
        self, name: str, least: float = 0.0, most: float = math.inf, count: int = 1 << 16
    ) -> tuple[float, ...]:
        """Return a list of at most `count` numbers in [least, most]."""
        return tuple(self._number(name, one, least, most) for one in self.items(name, count))

    def items(self, name: str, count: int = 1 << 16) -> list[Any]:
        """Return a list of at most `count` values, unchecked."""
        value = self._present(name)
        if not isinstance(value, list) or len(value) > count:
            self._refuse(name, "a list")
        return value

    def value(self, name: str) -> Any:
        """Return any value, unchecked, of a field that must be there."""
        return self._present(name)

    def _present(self, name: str) -> Any:
        if name not in self.entry:
            raise RecordError(f"the field {name!r} is missing")
        return self.entry[name]

    def _number(self, name: str, value: object, least: float, most: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, "a number")
        try:
            number = float(value)
        except OverflowError:
            self._refuse(name, "a number")
        if not least <= number <= most:
            self._refuse(name, f"in [{least:g}, {most:g}]")
        return number

    def _refuse(self, name: str, expected: str) -> NoReturn:
        raise RecordError(f"the field {name!r} is not {expected}")


Parse = Callable[[Fields], T]
"""Makes a value of the fields of one kind of record; raises ValueError where they do not fit."""


@dataclass(frozen=True, slots=True)
class Checked(Generic[T]):
    """The records of one batch that fit, in their order; how many are damaged, and how many not signed."""

    values: tuple[T, ...]
    damaged: int
    unsigned: int = 0


def check_records(
    entries: Iterable[dict[str, Any] | None],
    kinds: Mapping[str, Parse[T]],
    where: str,
    is_signed: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Checked[T]:
    """Check one batch of records.

    Args:
        entries: objects; None stands for a line that is none.
        kinds: how each kind is parsed, by the field that tells it.
        where: the records are, for the log: "costs of 1a2b".
        is_signed: tells whether an entry may be believed (`collage.store.record_keys`); None believes all.
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
            continue  # of a newer version
        if is_signed and not is_signed(entry):
            unsigned += 1
            continue
        try:
            values.append(parse(Fields(entry)))
        except (ValueError, RecursionError) as error:
            reasons.append(str(error) if isinstance(error, RecordError) else type(error).__name__)
    report_damage(where, reasons)
    if unsigned:
        _report_unsigned(where, unsigned)
    return Checked(tuple(values), len(reasons), unsigned)


def report_damage(where: str, reasons: list[str]) -> None:
    """Log the damaged records of one batch in one line."""
    if reasons:
        log.warning(
            "%s: %d damaged records count as absent; the first: %s", where, len(reasons), reasons[0]
        )


@functools.lru_cache(maxsize=1024)
def _report_unsigned(where: str, count: int) -> None:
    """Log once a place and count: a store that others use as well has such records in every batch."""
    log.warning(
        "%s: %d records count as absent, for no key that is known here signed them; machines that may run "
        "each other's code share one (COLLAGE_RECORD_KEY, see docs/store.md)",
        where,
        count,
    )

"""Settings behind the `?` of a store's address, `name=value&...`."""

from collections.abc import Collection
from urllib.parse import parse_qsl

from collage.errors import OptionError

_NUMBERS = {"attempts": int, "part_bytes": int, "timeout_s": float, "deadline_s": float}


def parse_settings(query: str, names: Collection[str]) -> dict[str, str | int | float]:
    """Parse the settings of an address.

    Args:
        query: part of the address behind the `?`.
        names: names of the settings that the store has.

    Raises:
        OptionError: an unknown name, or text in place of a number; the message repeats no value.
    """
    values: dict[str, str | int | float] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in names:
            options = ", ".join(sorted(names))
            raise OptionError(
                f"the store's address has an unknown setting {name!r}; known: {options}"
            )
        try:
            values[name] = _NUMBERS.get(name, str)(value)
        except ValueError:
            raise OptionError(f"the store's address: {name} is a number") from None
    return values

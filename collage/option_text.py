"""Parsers of option values that are written as text."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collage.errors import DimensionError, OptionError


def parse_duration(text: str) -> float:
    """Parse a duration into seconds; the unit is s, m, h or d, by default s."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    try:
        seconds = float(text[:-1]) * unit[text[-1]] if text[-1] in unit else float(text)
    except (ValueError, IndexError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write 90s, 3m, 1h or 7d")
    return seconds


def parse_share(text: str) -> float:
    """Parse a share of at least 0, written as 5% or 0.05."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 5% or 0.05")
    return share


def parse_size(text: str) -> int:
    """Parse a size with its unit (GiB, Gi, MiB, Mi, KiB, Ki, G, M) into bytes."""
    units = {
        "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "Gi": 1 << 30, "Mi": 1 << 20, "Ki": 1 << 10,
        "G": 10**9, "M": 10**6,
    }  # fmt: skip
    for suffix, factor in units.items():
        number = text.removesuffix(suffix)
        if number != text and number.replace(".", "", 1).isdecimal():
            return int(float(number) * factor)
    raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 4GiB or 512MiB")


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    return tuple(text.split(","))


def parse_paths(texts: Sequence[str]) -> tuple[Path, ...]:
    """Parse paths of files and folders."""
    return tuple(Path(text) for text in texts)


def parse_inputs(texts: Sequence[str]) -> dict[str, object]:
    """Parse `NAME=VALUE` and `NAME=FILE.npy` options: literals, and paths of files.

    >>> parse_inputs(["sr=16000", "sizes=32,24", "keep=true", "x=x.npy"])
    {'sr': 16000, 'sizes': [32, 24], 'keep': True, 'x': PosixPath('x.npy')}
    """
    inputs: dict[str, object] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise OptionError(f"--input {text}: write NAME=VALUE or NAME=FILE.npy")
        inputs[name] = Path(value) if value.endswith(".npy") else _parse_literal(text, value)
    return inputs


def _parse_literal(text: str, value: str) -> object:
    for written in (value, f"[{value}]"):
        try:
            literal = json.loads(written)
        except (ValueError, RecursionError):
            continue
        if isinstance(literal, bool | int | float | list):
            return literal
    raise OptionError(
        f"--input {text}: the value is no number, true or false, and no list as 32,24 or [[1,2],[3,4]]; "
        "give other values as a file, NAME=FILE.npy"
    )


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """Parse `NAME=N` options."""
    dims: dict[str, int] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value.isdigit():
            raise DimensionError(f"--dim {text}: write NAME=N, e.g. --dim batch=1")
        dims[name] = int(value)
    return dims


def parse_shapes(texts: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Parse `INPUT=1,3,480,480` options into shape sets; a repeated input starts a new set."""
    sets: list[dict[str, tuple[int, ...]]] = []
    for part in (part for text in texts for part in text.split(";")):
        name, _, value = part.rpartition("=")
        sizes = value.replace("x", ",").split(",") if value else []
        if not name or not all(size.strip().isdigit() for size in sizes):
            raise DimensionError(f"--shape {part}: write INPUT=1,3,480,480")
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = tuple(int(size) for size in sizes)
    return tuple(sets)


@dataclass(frozen=True)
class PadRequest:
    """A declared axis of `--pad`.

    Attributes:
        text: text of the option, for messages.
        input: name of the input.
        axis: number of the axis, from 0.
        value: value of added elements, default 0.
        crops: axes of outputs that follow the axis, as name and axis; None: those with the axis's name.
    """

    text: str
    input: str
    axis: int
    value: float = 0.0
    crops: tuple[tuple[str, int], ...] | None = None


def parse_pad(text: str) -> PadRequest:
    """Parse a value of `--pad`. Raises OptionError for any other text.

    >>> parse_pad("ids:1,value=-1,crop=logits:1+hidden:2").crops
    (('logits', 1), ('hidden', 2))
    """
    first, *parts = text.split(",")
    value, crops = 0.0, None
    try:
        for part in parts:
            key, _, content = part.partition("=")
            if key == "value":
                value = float(content)
            elif key == "crop":
                crops = tuple(map(_parse_axis, content.split("+"))) if content else ()
            else:
                raise ValueError(part)
        if not math.isfinite(value):
            raise ValueError(text)
        return PadRequest(text, *_parse_axis(first), value=value, crops=crops)
    except ValueError:
        raise OptionError(
            f"--pad {text}: write INPUT:AXIS, then ,value=NUMBER and ,crop=OUTPUT:AXIS+OUTPUT:AXIS where "
            "needed, e.g. --pad ids:1,value=0,crop=logits:1"
        ) from None


def _parse_axis(text: str) -> tuple[str, int]:
    name, _, axis = text.rpartition(":")
    if not name or not axis.isdecimal():
        raise ValueError(text)
    return name, int(axis)

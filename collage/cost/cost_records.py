"""Cost records: the fields of one cost in a line of a table or of a batch (see `collage.cost.lines`).

A damaged line counts as absent (see `collage.store.records`). So does a cost that no machine can have
measured: below `SHORTEST_S`, or outside of its own interval. Invalid costs are stored like valid ones (no
number, a reason).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collage.cost.cost import LONGEST_S, SHORTEST_S, Cost, CostKey, Environment
from collage.cost.lines import decode_entries, encode_entry
from collage.store.records import Checked, Fields, RecordError, check_records

MAX_KEY = 200
"""Largest number of characters of a key or a checksum."""

MAX_ERROR = 1e6
"""Largest relative error; a kernel with a larger one is invalid."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """A line with the cost of a candidate."""

    key: CostKey
    cost: Cost


@dataclass(frozen=True, slots=True)
class VoidLine:
    """A line that voids the key's cost with this checksum (`cost_checksum`)."""

    key: CostKey
    mark: str


def encode_line(key: CostKey, cost: Cost) -> bytes:
    """Return the line of one cost, with checksum and line end."""
    return encode_entry(cost_entry(key, cost))


def cost_entry(key: CostKey, cost: Cost) -> dict[str, Any]:
    """Return the fields of one cost's line."""
    entry: dict[str, Any] = {"key": key, "build_s": cost.build_s}
    if cost.is_invalid:
        entry["reason"] = cost.reason
    else:
        entry |= {"seconds": cost.seconds, "samples": list(cost.samples)}
        bounds = {"low": cost.low, "high": cost.high}
        entry |= {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
        entry |= {"error": cost.error} if cost.error else {}
        entry |= {"hides_nan": 1} if cost.hides_nan else {}
    return entry


def cost_checksum(key: CostKey, cost: Cost) -> str:
    """Return the checksum of the cost's line; it tells different costs of one key apart."""
    return encode_line(key, cost)[:8].decode()


def environment_line(environment: Environment) -> bytes:
    """Return the first line of a file or batch, for readers: the environment of its costs."""
    return encode_entry({"environment": json.dumps(asdict(environment))})


def decode_lines(
    data: bytes, origin: str, is_signed: Callable[[Mapping[str, Any]], bool] | None = None
) -> Checked[CostLine | VoidLine]:
    """Return the records of intact lines; damaged lines are counted, and logged with their `origin`."""
    return check_records(decode_entries(data), {"void": _void, "key": _keyed}, origin, is_signed)


def _void(fields: Fields) -> VoidLine:
    return VoidLine(
        CostKey(fields.text("void", maximum=MAX_KEY)), fields.text("mark", maximum=MAX_KEY)
    )


def _keyed(fields: Fields) -> CostLine:
    return CostLine(CostKey(fields.text("key", maximum=MAX_KEY)), _cost(fields))


def _cost(fields: Fields) -> Cost:
    build_s = fields.number("build_s", maximum=LONGEST_S)
    if "seconds" not in fields.entry:
        return Cost(math.inf, math.inf, math.inf, (), reason=fields.text("reason"), build_s=build_s)
    cost = Cost(
        fields.number("seconds", None, SHORTEST_S, LONGEST_S),
        fields.number("low", math.nan, SHORTEST_S, LONGEST_S),
        fields.number("high", math.nan, SHORTEST_S, LONGEST_S),
        fields.numbers("samples", SHORTEST_S, LONGEST_S),
        reason="",
        build_s=build_s,
        error=fields.number("error", 0.0, maximum=MAX_ERROR),
        hides_nan=bool(fields.number("hides_nan", 0.0, maximum=1.0)),
    )
    if cost.low > cost.seconds or cost.high < cost.seconds:
        raise RecordError("the cost lies outside of its own interval")
    return cost

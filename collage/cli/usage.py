"""The command `usage`: what the Jobs of a day used, by team, model, place or run."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from collage.cli.arguments import Commands, add_command, print_result
from collage.cli.store import STORE_HELP
from collage.errors import OptionError

if TYPE_CHECKING:
    from collage.store.usage import UsageEntry

GROUPS = ("team", "model", "place", "run")
TOTAL = "total"


class _Row(NamedTuple):
    """Sums of records; the price is None where one of them is unknown."""

    name: str
    node_seconds: float
    cpu_seconds: float
    gpu_seconds: float
    price: float | None


def add_usage_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "usage", _usage, "node-seconds and GPU-seconds of a day's Jobs, and their price"
    )
    parser.add_argument("store", help=STORE_HELP)
    parser.add_argument("--day", type=date.fromisoformat, metavar="2026-11-26",
                        help="day, UTC (default: today)")  # fmt: skip
    parser.add_argument("--by", choices=GROUPS, default="team", help="rows (default team)")
    parser.add_argument("--price", action="append", default=[], metavar="PLACE=0.0003",
                        help="price of a node-second of an environment, or of its build nodes "
                        "(gpu.build); repeatable")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _usage(arguments: argparse.Namespace) -> int:
    from collage.store import open_store
    from collage.store.usage import day_prefix, list_usage, today

    prices = _prices(arguments.price)
    day = arguments.day or today()
    store = open_store(arguments.store, writes=False, must_exist=True)
    entries = list_usage(store, day_prefix(day))
    rows = [
        _row(name, [entry for entry in entries if getattr(entry, arguments.by) == name], prices)
        for name in sorted({getattr(entry, arguments.by) for entry in entries})
    ]
    rows.append(_row(TOTAL, entries, prices))
    facts = {
        "day": day.isoformat(),
        "by": arguments.by,
        "rows": [row._asdict() for row in rows],
    }
    print_result(arguments.json, facts, _table(arguments.by, rows))
    return 0


def _prices(texts: Sequence[str]) -> dict[str, float]:
    prices = {}
    for text in texts:
        place, _, price = text.partition("=")
        try:
            prices[place] = float(price)
        except ValueError:
            raise OptionError(f"--price {text}: write PLACE=NUMBER, e.g. gpu=0.0003") from None
    return prices


def _row(name: str, entries: Sequence["UsageEntry"], prices: Mapping[str, float]) -> _Row:
    """Return the sums of records, with a price where every place among them has one."""
    from collage.store.usage import total, usage_by_place

    usage = total(entries)
    places = usage_by_place(entries)
    price = None
    if prices and places.keys() <= prices.keys():
        price = sum(spent.node_s * prices[place] for place, spent in places.items())
    return _Row(name, usage.node_s, usage.cpu_s, usage.gpu_s, price=price)


def _table(by: str, rows: Sequence[_Row]) -> str:
    lines = [f"{by:<32} {'node-seconds':>14} {'CPU-seconds':>14} {'GPU-seconds':>14} {'price':>12}"]
    for row in rows:
        price = "" if row.price is None else f"{row.price:,.4f}"
        lines.append(
            f"{row.name:<32} {row.node_seconds:>14,.1f} {row.cpu_seconds:>14,.1f} "
            f"{row.gpu_seconds:>14,.1f} {price:>12}"
        )
    return "\n".join(line.rstrip() for line in lines)

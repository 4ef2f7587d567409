"""Limits of usage: of a run, and in a day (UTC) of a model, of a team, and of all together.

A limit is checked before work starts, against the records of finished work (`collage.store.usage`). So a
day may end above a limit by what was under way when it was reached, never by a new start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from collage.errors import LimitError
from collage.store.base import Store
from collage.store.usage import (
    Usage,
    WorkOwner,
    day_prefix,
    key_part,
    list_run_usage,
    list_usage,
    model_prefix,
    team_prefix,
    today,
    total,
)

Prefix = Callable[[date, WorkOwner], str]

_DAILY: Mapping[str, Prefix] = {
    "model": model_prefix,
    "team": lambda day, owner: team_prefix(day, owner.team),
    "day": lambda day, owner: day_prefix(day),
}


@dataclass(frozen=True)
class Limit:
    """Limit of one sum.

    Attributes:
        scope: "run", "model", "team" or "day".
        node_s: node-seconds, None without a limit.
        gpu_s: GPU-seconds, None without a limit.
        setting: name of the setting, for messages.
    """

    scope: str
    node_s: float | None = None
    gpu_s: float | None = None
    setting: str = ""

    def excess(self, usage: Usage) -> str:
        """Return what has reached the limit in words; "" below it."""
        amounts = (
            ("node-seconds", usage.node_s, self.node_s),
            ("GPU-seconds", usage.gpu_s, self.gpu_s),
        )
        for unit, used_s, limit_s in amounts:
            if limit_s is not None and used_s >= limit_s:
                return f"{used_s:,.0f} of {limit_s:,.0f} {unit}"
        return ""


@dataclass(frozen=True)
class LimitCheck:
    """Checks the limits of one run.

    Attributes:
        since: day of the run's start, UTC.
        day: returns the present day.
    """

    store: Store
    owner: WorkOwner
    limits: tuple[Limit, ...]
    since: date
    day: Callable[[], date] = today

    def require_room(self) -> None:
        """Raise LimitError where a limit is reached, StoreError where the store fails."""
        for limit in self.limits:
            excess = limit.excess(self._used(limit.scope))
            if excess:
                raise LimitError(_refusal(limit, self.owner, excess), is_daily=limit.scope != "run")

    def _used(self, scope: str) -> Usage:
        day = self.day()
        if scope == "run":
            return total(list_run_usage(self.store, self.owner, self.since, day))
        return total(list_usage(self.store, _DAILY[scope](day, self.owner)))


class DayUsage:
    """Sums of one day, read once, for the daily limits of many models and teams."""

    def __init__(self, store: Store, day: date) -> None:
        """Read the day's records. Raises StoreError."""
        self._entries = list_usage(store, day_prefix(day))
        self._sums: dict[tuple[str, str], Usage] = {}

    def refusal(self, owner: WorkOwner, limits: Sequence[Limit]) -> str:
        """Return the daily limit that work of the owner would exceed, with the reason; "" for none."""
        for limit in limits:
            if limit.scope != "run" and (excess := limit.excess(self._used(limit.scope, owner))):
                return _refusal(limit, owner, excess)
        return ""

    def _used(self, scope: str, owner: WorkOwner) -> Usage:
        parts = {"day": (), "team": (owner.team,), "model": (owner.team, owner.model)}[scope]
        key = (scope, "/".join(map(key_part, parts)))
        if key not in self._sums:
            self._sums[key] = total(
                entry
                for entry in self._entries
                if "/".join((entry.team, entry.model)[: len(parts)]) == key[1]
            )
        return self._sums[key]


def _refusal(limit: Limit, owner: WorkOwner, excess: str) -> str:
    subjects = {
        "run": "this run has used",
        "model": f"today (UTC) the model {owner.model!r} has used",
        "team": f"today (UTC) the team {owner.team or 'without a name'!r} has used",
        "day": "today (UTC) all runs have used",
    }
    when = "" if limit.scope == "run" else ", or wait for tomorrow"
    return (
        f"{subjects[limit.scope]} {excess}: nothing more is started; "
        f"raise {limit.setting or 'the limit'}{when}"
    )

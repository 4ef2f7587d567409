"""Turns: the order in which due versions of several teams start.

At most `total` runs are under way, and at most `runs` of a team. Within that, teams take turns, one start
each: first by priority, then the team with fewer runs under way, then by name. A team's versions start in
order of their registration. A team that registers a thousand versions alone gets the whole total; once
another one has something due, that one may start up to its equal share of the total even where the first
has filled it. So no team waits for the end of another's queue, and no place stays empty for a team that has
nothing due. The order depends on its arguments alone; it costs O(starts x teams).
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from flows.teams import Teams


class Due(Protocol):
    """A version that needs a run."""

    @property
    def team(self) -> str:
        """Name of its team; "" without one."""
        ...

    @property
    def registered_s(self) -> float:
        """Time of its registration, seconds since 1970; 0.0 where unknown."""
        ...


T = TypeVar("T", bound=Due)


def take_turns(due: Sequence[T], under_way: Mapping[str, int], teams: Teams, total: int) -> list[T]:
    """Return the versions to start now, in order.

    Args:
        due: versions that need a run; equal times keep their order.
        under_way: number of runs of each team that are not over, waiting ones included.
        teams: settings of the teams.
        total: number of runs under way to which the teams are filled up.
    """
    queues: dict[str, deque[T]] = {}
    for version in sorted(due, key=lambda version: version.registered_s):
        queues.setdefault(version.team, deque()).append(version)
    counts = Counter(under_way)
    share = max(1, total // len(queues.keys() | +counts)) if queues else 0

    def has_room(team: str) -> bool:
        limit = teams.of(team).runs
        if limit is not None and counts[team] >= limit:
            return False
        return counts.total() < total or counts[team] < share

    starts = []
    while ready := [team for team in queues if queues[team] and has_room(team)]:
        team = min(ready, key=lambda name: (teams.of(name).priority, counts[name], name))
        starts.append(queues[team].popleft())
        counts[team] += 1
    return starts

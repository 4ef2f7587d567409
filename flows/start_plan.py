"""The plan of a reconcile: which versions start now, which wait for a turn, which are over a limit.

It reads the registry and the day's records of usage, and starts nothing: the flow `reconcile_registry` does,
and `benchmarks/registry_hour.py` plays an hour of a thousand versions with it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.errors import OptionError
from collage.pipeline.version_options import parse_version_options
from collage.registry import ModelVersion, Registry, UserTags
from collage.store.usage import WorkOwner
from collage.store.usage_limits import DayUsage
from flows.reconcile_policy import RunFact, reason_to_start, version_nodes
from flows.settings import FlowSettings
from flows.teams import Teams, run_limits
from flows.turns import take_turns

Runs = Mapping[tuple[str, str], Sequence[RunFact]]
"""Runs of each (model, version), the latest first; a run without a version has ""."""


@dataclass(frozen=True)
class DueVersion:
    """A version that needs a run.

    Attributes:
        runs: its runs, the latest first.
        tags: its settings by users.
        team: name of its team; "" without one.
        reason: why it needs a run.
    """

    version: ModelVersion
    runs: Sequence[RunFact]
    tags: UserTags
    team: str
    reason: str

    @property
    def registered_s(self) -> float:
        """Time of the version's registration, in seconds since 1970."""
        return self.version.registered_s

    @property
    def label(self) -> str:
        """Name and version of the model."""
        return f"{self.version.name} {self.version.version}"


@dataclass(frozen=True)
class StartPlan:
    """The due versions, in three parts.

    Attributes:
        starts: versions to start now, in order.
        waiting: versions whose team has as many runs under way as it may.
        refused: reason for each version that is over a daily limit, by its label.
    """

    starts: Sequence[DueVersion]
    waiting: Sequence[DueVersion]
    refused: Mapping[str, str]


def plan_starts(
    registry: Registry,
    runs: Runs,
    nodes: Mapping[str, str],
    settings: FlowSettings,
    *,
    teams: Teams,
    usage: DayUsage | None,
) -> StartPlan:
    """Plan the starts of all candidates.

    Args:
        registry: registry of the candidates.
        runs: the runs of versions.
        nodes: present node digest of each environment of the deployment; "" without a probe.
        settings: settings of the flows.
        teams: settings of the teams.
        usage: usage of the present day; None without limits.
    """
    due, names = [], {}
    for version in registry.candidates():
        tags = registry.user_tags(version)
        team = version_team(version.name, tags, teams)
        names[version.name, version.version] = team
        own = [*runs.get((version.name, version.version), ()), *runs.get((version.name, ""), ())]
        reason = reason_to_start(
            registry.status(version), own, version_nodes(tags.options, nodes), settings.attempts,
            options=tags.digest,
        )  # fmt: skip
        if reason:
            due.append(DueVersion(version, own, tags, team, reason=reason))
    refused = _refusals(due, usage, settings)
    allowed = [version for version in due if version.label not in refused]
    starts = take_turns(allowed, _under_way(runs, names), teams, settings.runs)
    chosen = {version.label for version in starts}
    waiting = [version for version in allowed if version.label not in chosen]
    return StartPlan(starts, waiting, refused)


def version_team(model: str, tags: UserTags, teams: Teams) -> str:
    """Return the name of a version's team; invalid options name none, and their run says so."""
    try:
        stated = parse_version_options(tags.options, "").team
    except OptionError:  # the run rejects them with the reason
        stated = ""
    return teams.name_of(model, stated, tags.team)


def _under_way(runs: Runs, names: Mapping[tuple[str, str], str]) -> Counter[str]:
    """Count the live runs of each team: by the run's tag, else by its version's team."""
    counts: Counter[str] = Counter()
    for version, several in runs.items():
        for run in several:
            if run.is_live:
                counts[names.get(version, "") if run.team is None else run.team] += 1
    return counts


def _refusals(
    due: Sequence[DueVersion], usage: DayUsage | None, settings: FlowSettings
) -> dict[str, str]:
    if usage is None:
        return {}
    refused = {}
    for item in due:
        owner = WorkOwner(model=item.version.name, version=item.version.version, team=item.team)
        if reason := usage.refusal(owner, run_limits(item.team, settings)):
            refused[item.label] = reason
    return refused

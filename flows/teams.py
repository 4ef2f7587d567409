"""Teams: who shares the pipeline, and what each may take, from the operator's file.

    ocr:
      prefixes: [ocr-]              # of names of models whose versions name no team
      runs: 3                       # runs under way at a time that the reconcile starts
      priority: 1                   # its turn comes first; also of its work queue
      queue: ocr                    # work queue of its runs, made by `python -m flows.setup`
      nodeSecondsPerDay: 36000
      environments: [gpu]
    default: {runs: 4}              # of versions without a team, and of teams without an entry

A version's team is that of its options, of its tag `collage.team`, or of its model's name by the longest
prefix. Without a file all versions are of one team without limits of its own.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from collage.errors import OptionError
from collage.pipeline.version_options import VersionOptions
from collage.store.usage_limits import Limit
from flows.names import RECONCILE_QUEUE
from flows.settings import FlowSettings

DEFAULT = "default"


class Team(BaseModel):
    """What one team may take.

    Attributes:
        prefixes: beginnings of the names of its models.
        runs: largest number of its runs under way, waiting ones included, beyond which the reconcile starts
            no more; None without a limit.
        priority: order of its turns and of its queue, 1 first.
        queue: work queue of its runs; "" is the deployment's.
        node_seconds_per_day: limit of a day (UTC), in node-seconds; None without one of its own.
        gpu_seconds_per_day: limit of a day (UTC), in GPU-seconds.
        environments: measuring environments that it may use; empty is all.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True
    )

    prefixes: tuple[str, ...] = ()
    runs: int | None = Field(default=None, ge=1)
    priority: int = Field(default=100, ge=1)
    queue: str = ""
    node_seconds_per_day: float | None = Field(default=None, gt=0)
    gpu_seconds_per_day: float | None = Field(default=None, gt=0)
    environments: tuple[str, ...] = ()

    @field_validator("queue")
    @classmethod
    def _queue_of_teams(cls, queue: str) -> str:
        if queue == RECONCILE_QUEUE:
            raise ValueError(f"the queue {queue!r} is the reconcile's: name another one")
        return queue


@dataclass(frozen=True)
class Teams:
    """The teams by name; empty without a file."""

    by_name: Mapping[str, Team] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, name: str) -> Team:
        """Return the settings of a team; those of `default` for one without an entry."""
        return self.by_name.get(name) or self.by_name.get(DEFAULT) or Team()

    def name_of(self, model: str, *stated: str) -> str:
        """Return the name of a version's team: the first stated name, else by the longest prefix.

        Args:
            model: name of the model.
            stated: names that the version states, the most important first; "" states none.
        """
        for name in stated:
            if name:
                return name
        matches = [
            (len(prefix), name)
            for name, team in sorted(self.by_name.items())
            for prefix in team.prefixes
            if prefix and model.startswith(prefix)
        ]
        return max(matches)[1] if matches else ""


def read_teams(file: Path | None) -> Teams:
    """Read the operator's file; None has no teams.

    Raises:
        OptionError: the file is absent or invalid; the message names the place.
    """
    if file is None:
        return Teams()
    try:
        return _parsed_file(file, file.stat().st_mtime_ns)
    except OSError as error:
        raise OptionError(
            f"{file}: {error.strerror}; set COLLAGE_TEAMS_FILE to a file that describes the teams"
        ) from error
    except yaml.YAMLError as error:
        raise OptionError(f"{file}: no YAML: {error}") from error


@functools.lru_cache(maxsize=4)
def _parsed_file(file: Path, modified_ns: int) -> Teams:
    """Parse a file once for each time of its modification: a reconcile asks for every version."""
    return parse_teams(yaml.safe_load(file.read_text()), str(file))


def parse_teams(content: object, source: str) -> Teams:
    """Parse a mapping of names to settings. Raises OptionError with the place in `source`."""
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise OptionError(f"{source}: write a mapping of the teams' names")
    teams = {}
    for name, entry in content.items():
        try:
            teams[name] = Team.model_validate(entry or {})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join((name, *map(str, first["loc"])))
            raise OptionError(f"{source}: {place}: {first['msg']}") from error
    return Teams(teams)


def team_queues(teams: Teams) -> list[str]:
    """Return the names of the teams' work queues, the best priority first, then by name."""
    priorities: dict[str, int] = {}
    for team in teams.by_name.values():
        if team.queue:
            before = priorities.get(team.queue, team.priority)
            priorities[team.queue] = min(before, team.priority)
    return sorted(priorities, key=lambda name: (priorities[name], name))


def run_limits(team: str, settings: FlowSettings) -> tuple[Limit, ...]:
    """Return the limits of a team's runs: those of the settings, with the team's own in place of theirs."""
    own = read_teams(settings.teams_file).of(team)
    limits = {(limit.scope, limit.gpu_s is not None): limit for limit in settings.limits.limits}
    place = f"of the team {team or DEFAULT!r} in {settings.teams_file}"
    if own.node_seconds_per_day is not None:
        setting = f"nodeSecondsPerDay {place}"
        limits["team", False] = Limit("team", node_s=own.node_seconds_per_day, setting=setting)
    if own.gpu_seconds_per_day is not None:
        setting = f"gpuSecondsPerDay {place}"
        limits["team", True] = Limit("team", gpu_s=own.gpu_seconds_per_day, setting=setting)
    return tuple(limits.values())


def team_environments(own: VersionOptions, team: str, settings: FlowSettings) -> tuple[str, ...]:
    """Return the environments of a version and its team; empty where neither names any.

    Raises:
        OptionError: the version names one that its team may not use.
    """
    allowed = read_teams(settings.teams_file).of(team).environments
    if refused := [name for name in own.environments if allowed and name not in allowed]:
        raise OptionError(
            f"the team {team or DEFAULT!r} may not use the environment {refused[0]!r}, only "
            f"{', '.join(allowed)}"
        )
    return own.environments or allowed

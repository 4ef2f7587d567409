"""Usage: node-seconds, CPU-seconds and GPU-seconds of pods, as records in the store.

    usage/<day>/<team>/<model>/<run>/<place>/<work>_<node ms>_<cpu ms>_<gpu ms>.json

The numbers are in the key, so that a listing alone adds up a day, a team, a model or a run, and several
controllers count the same: no counter is read and written back. <work> is a digest of the Job's uid. A Job
that two runs wait for is recorded by both: each run's cost contains it, and wider sums count it once, the
largest record where they differ. A day is one of UTC, that in which the work ended. The content of a record
says the same in full names, for people.

Listing a day of 1,000 runs of six Jobs takes six requests of S3.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType

from collage.store.aliases import slug
from collage.store.base import Store

NO_NAME = "-"
"""Part of a key in place of an empty name."""

BUILD_SUFFIX = ".build"
"""End of the name of a place of build nodes, behind the environment's name."""

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_KEY = re.compile(
    r"usage/\d{4}-\d\d-\d\d/(?P<team>[^/]+)/(?P<model>[^/]+)/(?P<run>[^/]+)/(?P<place>[^/]+)"
    r"/(?P<work>[0-9a-f]{16})_(?P<node>\d+)_(?P<cpu>\d+)_(?P<gpu>\d+)\.json"
)


@dataclass(frozen=True)
class Usage:
    """Seconds of nodes, of processors and of GPUs: the time of each pod, times what it asked for."""

    node_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.node_s + other.node_s, self.cpu_s + other.cpu_s, self.gpu_s + other.gpu_s)

    @classmethod
    def of(cls, seconds: float, cpus: float, gpus: float) -> "Usage":
        """Return the usage of one pod."""
        return cls(seconds, seconds * cpus, seconds * gpus)


@dataclass(frozen=True)
class WorkOwner:
    """The run, version and team that work is done for; empty names where nobody is known."""

    run: str = ""
    model: str = ""
    version: str = ""
    team: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """Valid values of labels, by name; empty names are left out."""
        names = {"model": self.model, "team": self.team}
        return {name: label_value(value) for name, value in names.items() if value}


NOBODY = WorkOwner()


@dataclass(frozen=True)
class UsageRecord:
    """The usage of one Job, or of one step on a machine without a cluster.

    Attributes:
        work: unique id of the work.
        place: name of the environment, with `BUILD_SUFFIX` for its build nodes.
        ended: day of its end, UTC.
        details: further facts for people, e.g. the pods; JSON values.
    """

    owner: WorkOwner
    place: str
    work: str
    usage: Usage
    ended: date
    details: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def digest(self) -> str:
        """Digest of the work's id, equal in all records of the work."""
        return hashlib.sha256(self.work.encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        numbers = (self.usage.node_s, self.usage.cpu_s, self.usage.gpu_s)
        text = "_".join([self.digest, *(str(round(1000 * seconds)) for seconds in numbers)])
        return f"{owner_prefix(self.ended, self.owner)}{key_part(self.place)}/{text}.json"


def record_usage(store: Store, record: UsageRecord) -> None:
    """Write a record; a repetition changes nothing. Raises StoreError."""
    owner, usage = record.owner, record.usage
    content = {
        "run": owner.run, "model": owner.model, "version": owner.version, "team": owner.team,
        "place": record.place, "work": record.work, "node_s": usage.node_s, "cpu_s": usage.cpu_s,
        "gpu_s": usage.gpu_s, **record.details,
    }  # fmt: skip
    store.create(record.key, json.dumps(content, sort_keys=True).encode())


@dataclass(frozen=True)
class UsageEntry:
    """One record as its key has it: parts of the key, not full names."""

    team: str
    model: str
    run: str
    place: str
    work: str
    usage: Usage


def list_usage(store: Store, prefix: str) -> list[UsageEntry]:
    """Return the records below a prefix of keys. Raises StoreError."""
    matches = (_KEY.fullmatch(entry.key) for entry in store.entries(prefix))
    return [_entry(match) for match in matches if match]


def total(entries: Iterable[UsageEntry]) -> Usage:
    """Return the sum of records; work with several records counts once, with the largest one."""
    largest: dict[str, Usage] = {}
    for entry in entries:
        before = largest.get(entry.work)
        if before is None or entry.usage.node_s > before.node_s:
            largest[entry.work] = entry.usage
    return sum(largest.values(), Usage())


def usage_by_place(entries: Iterable[UsageEntry]) -> dict[str, Usage]:
    """Return the sum of records of each place, by its name."""
    places: dict[str, list[UsageEntry]] = {}
    for entry in entries:
        places.setdefault(entry.place, []).append(entry)
    return {place: total(several) for place, several in sorted(places.items())}


def list_run_usage(store: Store, owner: WorkOwner, since: date, until: date) -> list[UsageEntry]:
    """Return the records of one run from `since` to `until`, both included. Raises StoreError."""
    return [
        entry
        for day in _days(since, until)
        for entry in list_usage(store, owner_prefix(day, owner))
    ]


def day_prefix(day: date) -> str:
    """Return the beginning of the keys of a day's records."""
    return f"usage/{day.isoformat()}/"


def team_prefix(day: date, team: str) -> str:
    """Return the beginning of the keys of a team's records of a day."""
    return f"{day_prefix(day)}{key_part(team)}/"


def model_prefix(day: date, owner: WorkOwner) -> str:
    """Return the beginning of the keys of a model's records of a day."""
    return f"{team_prefix(day, owner.team)}{key_part(owner.model)}/"


def owner_prefix(day: date, owner: WorkOwner) -> str:
    """Return the beginning of the keys of a run's records of a day."""
    return f"{model_prefix(day, owner)}{key_part(owner.run)}/"


def today() -> date:
    """Return the present day, UTC."""
    return datetime.now(UTC).date()


def label_value(text: str) -> str:
    """Return `text` as the value of a Kubernetes label; changed text gets a digest of the original.

    >>> label_value("resnet18"), label_value("my model")
    ('resnet18', 'my-model-76eeb0f9')
    """
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")[:54].rstrip("-_.")
    return f"{safe}-{digest}" if safe else digest


def key_part(name: str) -> str:
    """Return a name as one part of a key."""
    return slug(name) if name else NO_NAME


def _days(since: date, until: date) -> Iterator[date]:
    for number in range((until - since).days + 1):
        yield since + timedelta(days=number)


def _entry(match: re.Match[str]) -> UsageEntry:
    node_s, cpu_s, gpu_s = (int(match[name]) / 1000 for name in ("node", "cpu", "gpu"))
    names = {name: match[name] for name in ("team", "model", "run", "place", "work")}
    return UsageEntry(**names, usage=Usage(node_s, cpu_s, gpu_s))

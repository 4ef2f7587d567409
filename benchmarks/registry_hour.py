"""An hour in which five teams register a thousand versions, in simulated time.

    python -m benchmarks.registry_hour [--versions 1000] [--at-once 8] [--total 32]

One team registers four fifths of all versions in the first five minutes, the others spread theirs over the
hour. The registry of files, the plan of the reconcile (`flows.start_plan`), the teams' turns and the records
of usage are the product's, on a store in memory that counts its calls; the clock, the runs' durations
(log-normal about three minutes, seeded) and Prefect (a list of runs; a worker takes the oldest first) are
simulated. Two policies are compared: every due version starts at once, and teams take turns. All numbers
follow from the seed, so the tables are the same on every machine.
"""

import argparse
import heapq
import itertools
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from collage.registry import VersionStatus
from collage.registry.files import FileRegistry
from collage.store.base import Entry, Source, StoredObject, Version
from collage.store.usage import Usage, UsageRecord, WorkOwner, record_usage
from collage.store.usage_limits import DayUsage
from flows.own_runs import PAGE, PAGES
from flows.reconcile_policy import RunFact
from flows.settings import FlowSettings
from flows.start_plan import StartPlan, plan_starts
from flows.teams import read_teams

HOUR_S, RECONCILE_S = 3600.0, 600.0
DAY = date(2026, 11, 26)
NOISY = "noisy"
QUIET = ("audio", "ocr", "search", "vision")
NODES = {"gpu": ""}
TEAMS = "\n".join(f"{name}: {{prefixes: [{name}-]}}" for name in (NOISY, *QUIET))


@dataclass
class CountingStore:
    """A store in memory; `calls` counts its methods by name."""

    now_s: Callable[[], float]
    url: str = "memory://simulation"
    calls: Counter[str] = field(default_factory=Counter)
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    def read(self, key: str) -> StoredObject | None:
        self.calls["read"] += 1
        content = self.objects.get(key)
        return StoredObject(content[0], Version(content[0].hex())) if content else None

    def download(self, key: str, file: Path) -> bool:
        raise NotImplementedError("the reconcile downloads nothing")

    def create(self, key: str, source: Source) -> None:
        self.calls["write"] += 1
        data = source if isinstance(source, bytes) else source.read_bytes()
        self.objects.setdefault(key, (data, self.now_s()))

    def swap(self, key: str, data: bytes, version: Version | None) -> bool:
        self.calls["write"] += 1
        self.objects[key] = (data, self.now_s())
        return True

    def copy(self, key: str, target: str) -> bool:
        raise NotImplementedError("the reconcile copies nothing")

    def stat(self, key: str) -> Entry | None:
        raise NotImplementedError("the reconcile asks for no object alone")

    def entries(self, prefix: str) -> Iterator[Entry]:
        matching = [key for key in self.objects if key.startswith(prefix)]
        self.calls["list"] += max(1, -(-len(matching) // 1000))
        for key in matching:
            data, written_s = self.objects[key]
            yield Entry(key, len(data), self.now_s() - written_s)

    def delete(self, key: str) -> None:
        raise NotImplementedError("the reconcile deletes nothing")

    def remove_partial(self, older_s: float, dry_run: bool) -> list[str]:
        raise NotImplementedError("the reconcile sweeps nothing")

    @property
    def size_bytes(self) -> int:
        """Size of all objects."""
        return sum(len(data) for data, _ in self.objects.values())


@dataclass
class SimulatedRun:
    """A run of one version in the simulated Prefect; the times are simulated seconds."""

    fact: RunFact
    model: str
    duration_s: float
    started_s: float | None = None


@dataclass
class Figures:
    """The observations of one policy.

    Attributes:
        waited_s: seconds from registration to the start of the run, of each version, by team.
        started: number of runs that began within the hour, by team.
        queued: versions and runs that wait, at each reconcile of the hour.
        calls: calls of stores and of Prefect in the hour, by kind.
        store_objects: objects of the store after the hour, and `store_bytes` their size.
        drained_s: time at which the last run ended.
    """

    waited_s: dict[str, list[float]] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)
    queued: list[int] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    store_objects: int = 0
    store_bytes: int = 0
    drained_s: float = 0.0


class RegistryHour:
    """One simulation; `total` is the setting COLLAGE_RUNS, `at_once` the runs that the worker works on."""

    def __init__(
        self, folder: Path, versions: int, *, at_once: int, total: int, turns: bool, seed: int = 0
    ) -> None:
        self._now_s = 0.0
        self._registry_store = CountingStore(lambda: self._now_s)
        self._store = CountingStore(lambda: self._now_s)
        self._registry = FileRegistry(self._registry_store, "candidate", "optimized")
        self._teams_file = folder / "teams.yaml"
        self._teams_file.write_text(TEAMS if turns else "{}")
        self._settings = FlowSettings(store="memory", runs=total, teams_file=self._teams_file)
        self._at_once = at_once
        self._random = random.Random(seed)
        self._model = folder / "model.onnx"
        self._model.write_bytes(b"model")
        self._arrivals = self._arrival_times(versions)
        self._runs: dict[tuple[str, str], list[SimulatedRun]] = {}
        self._scheduled: list[SimulatedRun] = []
        self._working: list[tuple[float, int, SimulatedRun]] = []
        self._registered_s: dict[str, float] = {}
        self._numbers = itertools.count()
        self._waiting = 0
        self._figures = Figures()

    def play(self) -> Figures:
        """Play the hour, and on until every version had its run."""
        reconcile_s = 0.0
        while self._arrivals or self._scheduled or self._working or self._waiting:
            next_s = min(
                reconcile_s,
                self._arrivals[0][0] if self._arrivals else float("inf"),
                self._working[0][0] if self._working else float("inf"),
            )
            if next_s > HOUR_S >= self._now_s:
                self._close_hour()
            self._now_s = next_s
            self._register_due()
            self._end_due()
            if next_s == reconcile_s:
                self._reconcile()
                reconcile_s += RECONCILE_S
            self._begin_runs()
        self._figures.drained_s = self._now_s
        return self._figures

    def _arrival_times(self, versions: int) -> list[tuple[float, str]]:
        """Return time and name of each version, in order of time."""
        each = versions // 20
        noisy = versions - each * len(QUIET)
        times = [(self._random.uniform(0, 300), f"{NOISY}-{i:04}") for i in range(noisy)]
        for team in QUIET:
            times += [(self._random.uniform(0, HOUR_S), f"{team}-{i:04}") for i in range(each)]
        return sorted(times)

    def _register_due(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._now_s:
            time_s, name = self._arrivals.pop(0)
            self._registry.set_alias(self._registry.add(name, "1", {"model.onnx": self._model}))
            self._registered_s[name] = time_s
            self._waiting += 1

    def _reconcile(self) -> None:
        pages = min(PAGES, 1 + sum(map(len, self._runs.values())) // PAGE)
        self._count("Prefect read", pages + 1)
        facts = {
            version: [run.fact for run in reversed(runs)] for version, runs in self._runs.items()
        }
        plan = plan_starts(
            self._registry, facts, NODES, self._settings,
            teams=read_teams(self._teams_file), usage=DayUsage(self._store, DAY),
        )  # fmt: skip
        self._create_runs(plan)
        self._waiting = len(plan.waiting)
        if self._now_s <= HOUR_S:
            self._figures.queued.append(len(plan.waiting) + len(self._scheduled))

    def _create_runs(self, plan: StartPlan) -> None:
        for due in plan.starts:
            self._count("Prefect write", 1)
            fact = RunFact(f"{due.label}", "SCHEDULED", team=due.team)
            run = SimulatedRun(fact, due.version.name, self._random.lognormvariate(5.1, 0.5))
            self._runs.setdefault((due.version.name, "1"), []).append(run)
            self._scheduled.append(run)

    def _begin_runs(self) -> None:
        while self._scheduled and len(self._working) < self._at_once:
            run = self._scheduled.pop(0)
            run.started_s, run.fact = self._now_s, replace(run.fact, state="RUNNING")
            version = self._registry.find(run.model, "1")
            self._registry.record_status(version, VersionStatus(status="running"))
            team = run.model.partition("-")[0]
            waited_s = self._now_s - self._registered_s[run.model]
            self._figures.waited_s.setdefault(team, []).append(waited_s)
            self._figures.started[team] += self._now_s <= HOUR_S
            number = next(self._numbers)
            heapq.heappush(self._working, (self._now_s + run.duration_s, number, run))

    def _end_due(self) -> None:
        while self._working and self._working[0][0] <= self._now_s:
            _, _, run = heapq.heappop(self._working)
            run.fact = replace(run.fact, state="COMPLETED", name="Completed")
            version = self._registry.find(run.model, "1")
            status = VersionStatus(status="optimized", environment="gpu=node")
            self._registry.record_status(version, status)
            self._record_usage(run)

    def _record_usage(self, run: SimulatedRun) -> None:
        """Record the Jobs of a run as the cluster's ledger does: probe, two measuring ones, finish."""
        owner = WorkOwner(run.fact.id, run.model, "1", run.model.partition("-")[0])
        for number in range(4):
            usage = Usage.of(run.duration_s / 4, cpus=4, gpus=1)
            work = f"{run.fact.id} {number}"
            record_usage(self._store, UsageRecord(owner, "gpu", work=work, usage=usage, ended=DAY))

    def _count(self, kind: str, calls: int) -> None:
        if self._now_s <= HOUR_S:
            self._figures.calls[kind] += calls

    def _close_hour(self) -> None:
        for name, store in (("registry", self._registry_store), ("store", self._store)):
            for call, count in store.calls.items():
                self._figures.calls[f"{name} {call}"] = count
        self._figures.store_objects = len(self._store.objects)
        self._figures.store_bytes = self._store.size_bytes


def simulate(versions: int, at_once: int, total: int) -> dict[str, Figures]:
    """Play the hour once for each policy; return the figures by its name."""
    policies = {"all at once": (10 * versions, False), "turns": (total, True)}
    figures = {}
    for name, (limit, turns) in policies.items():
        with tempfile.TemporaryDirectory(prefix="registry-hour-") as folder:
            hour = RegistryHour(Path(folder), versions, at_once=at_once, total=limit, turns=turns)
            figures[name] = hour.play()
    return figures


def report(figures: dict[str, Figures]) -> str:
    """Return the tables: waiting times by team, then queue, calls and growth of the store."""
    lines = ["| policy | team | versions | begun in the hour | waited: median | 95 % | longest |",
             "|---|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for policy, actual in figures.items():
        for team in (NOISY, *QUIET):
            waited = sorted(actual.waited_s[team])
            high = waited[int(0.95 * (len(waited) - 1))]
            lines.append(
                f"| {policy} | {team} | {len(waited)} | {actual.started[team]} "
                f"| {_minutes(statistics.median(waited))} | {_minutes(high)} | {_minutes(waited[-1])} |"
            )
    kinds = sorted({kind for actual in figures.values() for kind in actual.calls})
    rows = {
        "longest queue in the hour": {name: f"{max(f.queued)}" for name, f in figures.items()},
        "all versions done after": {name: _minutes(f.drained_s) for name, f in figures.items()},
        **{
            f"calls in the hour: {kind}": {
                name: f"{f.calls[kind]:,}" for name, f in figures.items()
            }
            for kind in kinds
        },
        "records of usage after the hour": {
            name: f"{f.store_objects}, {f.store_bytes / 1024:.0f} KiB"
            for name, f in figures.items()
        },
    }
    lines += ["", f"| | {' | '.join(figures)} |", "|---|" + "---:|" * len(figures)]
    lines += [f"| {row} | {' | '.join(cells.values())} |" for row, cells in rows.items()]
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def main() -> None:
    """Play both policies and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=1000, help="versions of all teams")
    parser.add_argument("--at-once", type=int, default=8, help="runs that the worker works on")
    parser.add_argument("--total", type=int, default=32, help="COLLAGE_RUNS, with turns")
    arguments = parser.parse_args()
    print(report(simulate(arguments.versions, arguments.at_once, arguments.total)))


if __name__ == "__main__":
    main()

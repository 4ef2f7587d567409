"""A picture of the dashboard's series: one simulated day, the exporter's series, a real Prometheus.

Runs arrive at random, wait for a free place, and end with a result; in the afternoon the nodes are gone for
two hours, so that Jobs are given up and runs pile up. `RunMetrics` counts them as the exporter does. Its
series, one sample every two minutes, become blocks of Prometheus (promtool), and the picture shows what the
dashboard's own queries answer. Arrivals, durations and results are simulated; nothing is measured.

    python -m benchmarks.run_dashboard      # writes docs/run-metrics.png; needs Debian's prometheus
"""

import json
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from containers.run_metrics import EndedRun, EnvironmentRecord, RunMetrics
from tests.servers import debian
from tests.servers.prometheus import Prometheus

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "helm" / "collage" / "dashboards" / "collage.json"
PICTURE = ROOT / "docs" / "run-metrics.png"
DAY_S, SAMPLE_S, WARM_UP_S = 86400, 120, 7200
OUTAGE = (14 * 3600, 16 * 3600)
PLACES = 3
RUNS = 300
ENVIRONMENTS = ("c7i", "h200")
SHOWN = (
    "Ended runs by result, each hour", "Waiting and running", "Duration of runs",
    "Results by environment, each day", "Node hours by environment, each day",
    "GPU hours by environment, each day",
)  # fmt: skip

Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class SimulatedRun:
    """A run of the day; times in seconds since its begin."""

    due_s: float
    begun_s: float
    ended_s: float
    result: str


def main() -> None:
    """Simulate a day and draw it."""
    end_s = int(time.time())
    with tempfile.TemporaryDirectory(prefix="collage-dashboard-") as created:
        folder = Path(created)
        (folder / "series.txt").write_text(openmetrics(end_s - DAY_S))
        promtool = debian.find_program("promtool", "prometheus")
        command = ["tsdb", "create-blocks-from", "openmetrics", "series.txt", "data"]
        subprocess.run([promtool, *command], cwd=folder, check=True, capture_output=True)
        server = Prometheus(folder, [], {})
        try:
            draw({title: answers(server, title, end_s) for title in SHOWN})
        finally:
            server.close()
    print(f"wrote {PICTURE.relative_to(ROOT)}")


def simulate(seed: int = 7) -> list[SimulatedRun]:
    """Return the runs of a day: a queue with `PLACES` places."""
    chance = random.Random(seed)
    free_s = [0.0] * PLACES
    runs = []
    for due_s in sorted(chance.uniform(0, DAY_S) for _ in range(RUNS)):
        place = min(range(PLACES), key=free_s.__getitem__)
        begun_s = max(due_s, free_s[place])
        result, duration_s = _end(chance, begun_s)
        free_s[place] = begun_s + duration_s
        runs.append(SimulatedRun(due_s, begun_s, free_s[place], result))
    return runs


def _end(chance: random.Random, begun_s: float) -> tuple[str, float]:
    if OUTAGE[0] <= begun_s < OUTAGE[1]:
        return "given_up", chance.uniform(1500, 2100)
    result = chance.choices(
        ("optimized", "not_faster", "rejected", "failed", "crashed"), (70, 15, 8, 4, 3)
    )
    return result[0], chance.lognormvariate(6.3, 0.5) * (0.1 if result[0] == "rejected" else 1.0)


def ended_run(run: SimulatedRun, number: int) -> EndedRun:
    """Return the run as the exporter reads it."""
    states = {"rejected": ("FAILED", "Rejected"), "crashed": ("CRASHED", "Crashed")}
    state, name = states.get(run.result, ("FAILED", "Failed"))
    seconds = run.ended_s - run.begun_s
    if run.result in ("optimized", "not_faster"):
        state, name = "COMPLETED", "Completed"
    status = run.result.replace("_", "-") if state == "COMPLETED" else "failed"
    given_up = run.result == "given_up"
    nodes_s = 0.0 if given_up or run.result == "rejected" else seconds
    records = tuple(
        EnvironmentRecord(
            environment, status, given_up, node_seconds=nodes * nodes_s, gpu_seconds=gpus * nodes_s
        )
        for environment, nodes, gpus in (("c7i", 2.5, 0.0), ("h200", 1.5, 1.5))
    )
    return EndedRun(
        id=str(number), state=state, state_name=name, ended="", seconds=seconds,
        records=records if state != "CRASHED" else (),
    )  # fmt: skip


def samples(begin_s: int) -> Iterator[tuple[int, RunMetrics]]:
    """Step through the day; yield the time and the series after each step."""
    runs = simulate()
    metrics = RunMetrics(ENVIRONMENTS)
    pending = sorted(enumerate(runs), key=lambda pair: pair[1].ended_s)
    for now_s in range(0, DAY_S, SAMPLE_S):
        while pending and pending[0][1].ended_s <= now_s:
            number, run = pending.pop(0)
            metrics.count(ended_run(run, number))
        waiting = [run.due_s for run in runs if run.due_s <= now_s < run.begun_s]
        running = sum(run.begun_s <= now_s < run.ended_s for run in runs)
        oldest_s = now_s - min(waiting) if waiting else 0.0
        metrics.show({"waiting": len(waiting), "running": running}, oldest_s, begin_s + now_s)
        yield begin_s + now_s, metrics


def openmetrics(begin_s: int) -> str:
    """Return the day's samples in the form that promtool reads."""
    kinds: dict[str, str] = {}
    values: dict[str, dict[Series, list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for time_s, metrics in samples(begin_s):
        for family in metrics.registry.collect():
            kinds[family.name] = family.type
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    series = (sample.name, tuple(sample.labels.items()))
                    values[family.name][series].append((time_s, sample.value))
    lines = []
    for family_name, kind in kinds.items():
        lines.append(f"# TYPE {family_name} {kind}")
        for (name, labels), points in values[family_name].items():
            pairs = ",".join(
                f'{key}="{value}"' for key, value in (*labels, ("namespace", "collage"))
            )
            lines += [f"{name}{{{pairs}}} {value} {time_s}" for time_s, value in points]
    return "\n".join([*lines, "# EOF", ""])


def answers(server: Prometheus, title: str, end_s: int) -> dict[str, list[tuple[float, float]]]:
    """Return the lines of a panel: hours of the day and values, by legend."""
    panels = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    lines = {}
    for target in panels[title]["targets"]:
        query = {
            "query": target["expr"].replace("$namespace", "collage"), "start": end_s - DAY_S + WARM_UP_S,
            "end": end_s, "step": 300,
        }  # fmt: skip
        answer = httpx.get(f"{server.url}/api/v1/query_range", params=query, timeout=60).json()
        for series in answer["data"]["result"]:
            legend = target["legendFormat"]
            for key, value in series["metric"].items():
                legend = legend.replace(f"{{{{{key}}}}}", value)
            lines[legend] = [
                ((moment - (end_s - DAY_S)) / 3600, float(value))
                for moment, value in series["values"]
            ]
    return lines


def draw(panels: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(12, 9), constrained_layout=True)
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=True):
        for legend, points in sorted(lines.items()):
            if any(value for _, value in points):
                hours, values = zip(*points, strict=True)
                axis.plot(hours, values, label=legend, linewidth=1.4)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("hour of the simulated day", fontsize=8)
        axis.axvspan(OUTAGE[0] / 3600, OUTAGE[1] / 3600, color="0.93")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, loc="upper left")
    figure.savefig(PICTURE, dpi=90)


if __name__ == "__main__":
    main()

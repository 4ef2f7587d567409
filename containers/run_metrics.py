"""Prometheus series of the runs: how they ended, how long they took, what they cost, and which wait.

Counters begin at zero with the process, as Prometheus expects of a target that was restarted; gauges say
what Prefect says at present. A run counts once, when it has ended: by its own result, and once for each
measuring environment. Series have no label for the model: a registry has thousands.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

RESULTS = (
    "optimized", "not_faster", "rejected", "failed", "given_up", "crashed", "cancelled", "unknown",
)  # fmt: skip
"""Results of runs; the result is unknown if a run completed without a record of its environments."""
STATES = ("waiting", "running")
STATUSES = ("optimized", "not-faster", "failed")
RUN_SECONDS = (30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
"""Upper bounds of the histogram's buckets, in seconds."""


@dataclass(frozen=True)
class EnvironmentRecord:
    """The record of one environment of a run: a row of the run's artifact `results`.

    Attributes:
        status: one of `STATUSES`.
        given_up: whether a Job that could not start, or waited for too long, was the reason.
        node_seconds: time of the run's pods on nodes; 0.0 if unknown.
        gpu_seconds: the same times the GPUs of each pod; 0.0 if unknown.
    """

    environment: str
    status: str
    given_up: bool = False
    node_seconds: float = 0.0
    gpu_seconds: float = 0.0


@dataclass(frozen=True)
class EndedRun:
    """A run that ended.

    Attributes:
        state: type of Prefect's state, e.g. `COMPLETED`.
        state_name: name of the state, e.g. `Rejected`.
        ended: time of the end, as Prefect writes it.
        seconds: time in the state `RUNNING`.
        records: records of its environments; none for a run that ended before.
    """

    id: str
    state: str
    state_name: str
    ended: str
    seconds: float
    records: tuple[EnvironmentRecord, ...] = ()

    @property
    def result(self) -> str:
        """The run's result, one of `RESULTS`."""
        if self.state in ("CRASHED", "CANCELLED"):
            return self.state.lower()
        if self.state == "FAILED":
            if self.state_name == "Rejected":
                return "rejected"
            return "given_up" if any(record.given_up for record in self.records) else "failed"
        statuses = {record.status for record in self.records}
        if not statuses:
            return "unknown"
        return "not_faster" if "not-faster" in statuses else "optimized"


class RunMetrics:
    """The series, in a registry of their own."""

    def __init__(self, environments: Iterable[str] = ()) -> None:
        """Begin at zero: Prometheus sees no increase in a series that begins with its first run.

        Args:
            environments: names of the known measuring environments; default none.
        """
        self.registry = CollectorRegistry()
        self._ended = self._counter("collage_runs_ended", "Runs by result", "result")
        self._seconds = Histogram(
            "collage_run_seconds", "Time of ended runs in the state RUNNING", ["result"],
            buckets=RUN_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._environments = self._counter(
            "collage_run_environments",
            "Results of runs in each environment",
            "environment",
            "status",
        )
        self._node_seconds = self._counter(
            "collage_run_node_seconds", "Time of pods of ended runs on nodes", "environment"
        )
        self._gpu_seconds = self._counter(
            "collage_run_gpu_seconds", "Time of GPUs of ended runs", "environment"
        )
        self._runs = Gauge(
            "collage_runs", "Present runs by state", ["state"], registry=self.registry
        )
        self._oldest_s = self._gauge("collage_run_oldest_waiting_seconds", "Of runs that are due")
        self._read_at = self._gauge(
            "collage_metrics_last_read_timestamp_seconds", "Last complete answer of Prefect"
        )
        self._failures = self._counter("collage_metrics_read_failures", "Reads without an answer")
        for result in RESULTS:
            self._ended.labels(result)
            self._seconds.labels(result)
        for environment in environments:
            self._node_seconds.labels(environment)
            self._gpu_seconds.labels(environment)
            for status in STATUSES:
                self._environments.labels(environment, status)

    def count(self, run: EndedRun) -> None:
        """Count a run that ended."""
        self._ended.labels(run.result).inc()
        self._seconds.labels(run.result).observe(run.seconds)
        for record in run.records:
            self._environments.labels(record.environment, record.status).inc()
            self._node_seconds.labels(record.environment).inc(record.node_seconds)
            self._gpu_seconds.labels(record.environment).inc(record.gpu_seconds)

    def show(self, runs: Mapping[str, int], oldest_waiting_s: float, now_s: float) -> None:
        """Set the gauges after a read.

        Args:
            runs: number of runs in each of `STATES`.
            oldest_waiting_s: time since the oldest waiting run was due; 0.0 without one.
            now_s: time of the read.
        """
        for state in STATES:
            self._runs.labels(state).set(runs[state])
        self._oldest_s.set(oldest_waiting_s)
        self._read_at.set(now_s)

    def count_failure(self) -> None:
        """Count a read without an answer; the gauges keep what they said."""
        self._failures.inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

"""The reconcile policy: the decision for a run, from the registry's tags and Prefect's runs.

A webhook may be lost, a flow may be killed at any moment, and an environment may change after its bundle was
measured. A superfluous run costs seconds (all results are in the store), a concurrent second run is wasted,
and an unusable model fails every time. The flows' own tags and the alias `optimized` are no reason for a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.registry import ModelVersion, VersionStatus
from collage.release_names import released
from flows.names import REJECTED
from flows.results import parse_pairs

_LIVE = frozenset({"SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"})
_BROKEN = frozenset({"FAILED", "CRASHED"})


@dataclass(frozen=True)
class RunFact:
    """A run of one version: id, and type and name of its state."""

    id: str
    state: str
    name: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE

    @property
    def broke(self) -> bool:
        """Whether the run ended for a reason that another run may not have."""
        return self.state in _BROKEN and self.name != REJECTED


def reason_to_start(
    status: VersionStatus, runs: Sequence[RunFact], nodes: Mapping[str, str], attempts: int
) -> str:
    """Return the reason for a run of the version; "" if it needs none.

    Args:
        runs: runs of the version, the latest first.
        nodes: present node digest of each configured environment; "" without a probe.
        attempts: limit of consecutive broken runs; a person must look after it.
    """
    if any(run.is_live for run in runs):
        return ""
    broken = 0
    for run in runs:
        if not run.broke:
            break
        broken += 1
    if broken >= attempts or (runs and not broken and runs[0].state == "CANCELLED"):
        return ""
    if broken:
        return f"the run before was interrupted ({broken} of {attempts} attempts)"
    if status.status in ("optimized", "not-faster"):
        return _changed(status, nodes)
    if status.status == "failed":
        return ""
    return "no run has taken it up" if not runs else "its status was lost"


def _changed(status: VersionStatus, nodes: Mapping[str, str]) -> str:
    measured = parse_pairs(status.environment)
    new = sorted(nodes.keys() - measured.keys())
    if new:
        return f"not measured yet on {', '.join(new)}"
    changed = sorted(name for name, digest in nodes.items() if digest and digest != measured[name])
    return f"the environment changed: {', '.join(changed)}" if changed else ""


def start_key(version: ModelVersion, runs: Sequence[RunFact], release: str) -> str:
    """Return the idempotency key of the run: equal decisions from equal runs start one run.

    Prefect compares the keys of all runs of a flow, those of other releases included.
    """
    key = f"reconcile:{version.name}:{version.version}:{runs[0].id if runs else 'first'}"
    return released(key, release)

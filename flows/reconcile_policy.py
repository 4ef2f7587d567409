"""Does a candidate need a run? Decided from what the registry's tags and Prefect's runs say.

A webhook may be lost, a flow may be killed at any moment, and an environment changes under a bundle that
was measured on it. A run for nothing costs seconds (everything is in the store), a second run at the
same time is wasted, and a model that cannot be used fails the same way every time. What the flows write
themselves (tags, the alias `optimized`) is no reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.registry import VersionStatus
from flows.names import REJECTED
from flows.results import parse_pairs

_LIVE = frozenset({"SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"})
_BROKEN = frozenset({"FAILED", "CRASHED"})


@dataclass(frozen=True)
class RunFact:
    """A run of one version: id, type and name of its state."""

    id: str
    state: str
    name: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE

    @property
    def broke(self) -> bool:
        """Ended for a reason that another run may not meet."""
        return self.state in _BROKEN and self.name != REJECTED


def reason_to_start(
    status: VersionStatus, runs: Sequence[RunFact], nodes: Mapping[str, str], attempts: int
) -> str:
    """Say why the version needs a run; "" when it does not.

    Args:
        runs: of this version, the latest first.
        nodes: digest of each configured environment's node as it is now; "" where it was not asked.
        attempts: runs in a row that may break before a person has to look.
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


def start_key(model: str, version: str, runs: Sequence[RunFact]) -> str:
    """Name the run to start: whoever comes to the same conclusion from the same runs starts one."""
    return f"reconcile:{model}:{version}:{runs[0].id if runs else 'first'}"

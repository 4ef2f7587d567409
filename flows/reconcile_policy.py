"""The reconcile policy: the decision for a run, from the registry's tags and Prefect's runs.

A webhook may be lost, a flow may be killed at any moment, and an environment may change after its bundle was
measured. A superfluous run costs seconds (all results are in the store), a concurrent second run is wasted,
and an unusable model fails every time. The flows' own tags and the alias `optimized` are no reason for a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.errors import OptionError
from collage.pipeline.version_options import parse_version_options
from collage.registry import ModelVersion, VersionStatus
from collage.release_names import released
from flows.names import OVER_LIMIT, REJECTED
from flows.results import parse_pairs

_LIVE = frozenset({"SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"})
_BROKEN = frozenset({"FAILED", "CRASHED"})

TEAM_PREFIX = "collage-team:"
"""Beginning of the tag of runs that were started in a team's turn."""

OPTIONS_PREFIX = "collage-options:"
"""Beginning of the tag of runs that were started for options of a version."""


@dataclass(frozen=True)
class RunFact:
    """A run of one version: id, and type and name of its state.

    Attributes:
        options: tag of the options for which reconcile started the run (`options_tag`); "" for other runs.
        team: team for which reconcile started the run; None for other runs.
    """

    id: str
    state: str
    name: str = ""
    options: str = ""
    team: str | None = None

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE

    @property
    def broke(self) -> bool:
        """Whether the run ended for a reason that another run may not have."""
        return self.state in _BROKEN and self.name not in (REJECTED, OVER_LIMIT)

    @property
    def is_limited(self) -> bool:
        """Whether a daily limit of cost stopped the run."""
        return self.name == OVER_LIMIT


def reason_to_start(
    status: VersionStatus,
    runs: Sequence[RunFact],
    nodes: Mapping[str, str],
    attempts: int,
    *,
    options: str = "",
) -> str:
    """Return the reason for a run of the version; "" if it needs none.

    Args:
        status: recorded status of the version.
        runs: runs of the version, the latest first.
        nodes: present node digest of each of the version's environments; "" without a probe.
        attempts: limit of consecutive broken runs; a person must look after it.
        options: digest of the version's present options; "" without any.
    """
    if any(run.is_live for run in runs):
        return ""
    if status.status and status.options_digest != options:
        # runs for other options say nothing about these
        runs = [run for run in runs if run.options == options_tag(options)]
        if not runs:
            return "its options changed"
    broken = 0
    for run in runs:
        if not run.broke:
            break
        broken += 1
    if broken >= attempts or (runs and not broken and runs[0].state == "CANCELLED"):
        return ""
    if broken:
        return f"the run before was interrupted ({broken} of {attempts} attempts)"
    if runs and runs[0].is_limited:
        return "a daily limit of cost stopped the run before"
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


def options_tag(digest: str) -> str:
    """Return the tag of runs that reconcile starts for a version with such options."""
    return f"{OPTIONS_PREFIX}{digest or 'none'}"


def team_tag(team: str) -> str:
    """Return the tag of runs that reconcile starts for a team; "" is a version without one."""
    return f"{TEAM_PREFIX}{team}"


def version_nodes(text: str, nodes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the nodes of the environments that a version's options name; all where they name none.

    Args:
        text: options of the version; invalid ones name none, and their run says what is wrong.
        nodes: present node digest of each environment of the deployment; "" without a probe.
    """
    try:
        environments = parse_version_options(text, "").environments
    except OptionError:  # the run rejects them with the reason
        return nodes
    return {name: nodes.get(name, "") for name in environments} or nodes

"""Results of a version in each environment, and their summary for the version."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from collage.errors import (
    CollageError,
    DamagedError,
    GateError,
    GivenUpError,
    InputError,
    RegistryError,
    StoreError,
    UnprovenError,
)
from collage.pipeline.request import CompileRequest, CompileResult
from collage.registry import VersionStatus

Status = Literal["running", "optimized", "not-faster", "failed"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Submitted(_Document):
    """A model in the store, with one request for each environment."""

    model: str
    version: str
    requests: tuple[CompileRequest, ...]


class Outcome(_Document):
    """The result of one environment.

    Attributes:
        node: digest of the node information; "" without a probe.
        bundle: present bundle of `alias`; "" if no bundle passed the gate.
        rejected: True for an unusable model; a repetition does not help.
        given_up: True if a Job could not start, or waited or ran for too long.
    """

    environment: str
    status: Status
    reason: str
    node: str = ""
    bundle: str = ""
    alias: str = ""
    moved: bool = False
    rejected: bool = False
    given_up: bool = False
    result: CompileResult | None = None

    @property
    def accepted(self) -> bool:
        return self.status == "optimized"

    @property
    def speedup(self) -> float | None:
        return self.result.speedup if self.result else None


def failed(environment: str, error: Exception, node: str = "") -> Outcome:
    """Return the result of an error; an unproven bundle is a verdict of the gate and no failure."""
    status: Status = "not-faster" if isinstance(error, UnprovenError) else "failed"
    return Outcome(
        environment=environment, status=status, reason=plain(error), node=node,
        rejected=is_rejection(error), given_up=isinstance(error, GivenUpError),
    )  # fmt: skip


def plain(error: Exception) -> str:
    """Return the text of an error; Collage's own errors are sentences already."""
    text = str(error) or "no details"
    if isinstance(error, CollageError):
        return text
    return f"{type(error).__name__}: {text}"


def is_rejection(error: BaseException) -> bool:
    """Tell whether the model, its options or its accuracy is the cause, not the machines."""
    return isinstance(error, (InputError, GateError))


def is_infrastructure(error: BaseException) -> bool:
    """Tell whether a repetition of the call may succeed."""
    if isinstance(error, DamagedError):
        return False
    return isinstance(error, (StoreError, RegistryError, ConnectionError, TimeoutError))


def overall(outcomes: Sequence[Outcome]) -> Status:
    """Return the status of a version: the worst one of its environments."""
    statuses = {outcome.status for outcome in outcomes}
    order: tuple[Status, ...] = ("failed", "not-faster", "optimized")
    return next((status for status in order if status in statuses), "failed")


def reasons(outcomes: Sequence[Outcome]) -> str:
    """Return the reasons of all environments in one line."""
    return "; ".join(
        f"{outcome.environment}: {outcome.reason}" for outcome in outcomes if outcome.reason
    )


def verdict_text(result: CompileResult, promotion: str) -> str:
    """Return the speed-up of the bundle and the reason of the alias's move."""
    speed = f"{result.speedup:.2f}x the best original framework; " if result.speedup else ""
    return speed + promotion


def version_status(outcomes: Sequence[Outcome]) -> VersionStatus:
    """Return the tags for the registry: the bundle's digest, or one for each of several environments."""
    bundles = {outcome.environment: outcome.bundle for outcome in outcomes if outcome.bundle}
    alone = next(iter(bundles.values()), "") if len(outcomes) == 1 else pairs(bundles)
    return VersionStatus(
        status=overall(outcomes),
        bundle=alone,
        speedup=slowest_speedup(outcomes),
        reason=reasons(outcomes),
        environment=pairs({outcome.environment: outcome.node for outcome in outcomes}),
    )


def slowest_speedup(outcomes: Sequence[Outcome]) -> float | None:
    """Return the least speed-up of all environments; None if one is unknown."""
    speedups = [outcome.speedup for outcome in outcomes]
    reported = [speedup for speedup in speedups if speedup is not None]
    return min(reported) if reported and len(reported) == len(speedups) else None


def pairs(values: dict[str, str]) -> str:
    """Return `local=0a1b,gpu=2c3d`, the inverse of `parse_pairs`."""
    return ",".join(f"{name}={value}" for name, value in sorted(values.items()) if value)


def parse_pairs(text: str) -> dict[str, str]:
    """Parse the text of `pairs`; parts without a pair are skipped.

    >>> parse_pairs(pairs({"local": "0a1b", "gpu": "2c3d"}))
    {'gpu': '2c3d', 'local': '0a1b'}
    """
    parts = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in parts if name and value}

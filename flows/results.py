"""Results of a version in each environment, and their summary for the version."""

import json
from collections.abc import Sequence
from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from collage.errors import (
    CollageError,
    DamagedError,
    DimensionError,
    GateError,
    GivenUpError,
    InputError,
    LimitError,
    OptionError,
    RegistryError,
    StoreError,
    UnprovenError,
)
from collage.pipeline.request import CompileRequest, CompileResult
from collage.registry import VersionStatus
from collage.store.usage import WorkOwner, today
from flows.cost import RunCost

Status = Literal["running", "optimized", "not-faster", "failed"]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Submitted(_Document):
    """A model in the store, with one request for each environment.

    Attributes:
        options_digest: digest of the version's own options (`collage.registry.UserTags`).
        options_place: place of these options in words; "" for a file.
        team: name of the version's team; "" without one.
        run: id of the run.
        started: day of the run's start, UTC.
    """

    model: str
    version: str
    requests: tuple[CompileRequest, ...]
    options_digest: str = ""
    options_place: str = ""
    team: str = ""
    run: str = ""
    started: date = Field(default_factory=today)

    @property
    def owner(self) -> WorkOwner:
        """The run as the owner of work."""
        return WorkOwner(run=self.run, model=self.model, version=self.version, team=self.team)


class Outcome(_Document):
    """The result of one environment.

    Attributes:
        node: digest of the node information; "" without a probe.
        bundle: present bundle of `alias`; "" if no bundle passed the gate.
        rejected: True for an unusable model; a repetition does not help.
        given_up: True if a Job could not start, or waited or ran for too long.
        limited: True where a daily limit of cost was reached; another day helps.
        cost: cost of the run in the environment; None where it is unknown.
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
    limited: bool = False
    result: CompileResult | None = None
    cost: RunCost | None = None

    @property
    def accepted(self) -> bool:
        return self.status == "optimized"

    @property
    def speedup(self) -> float | None:
        return self.result.speedup if self.result else None


def failed(environment: str, error: Exception, node: str = "", options_place: str = "") -> Outcome:
    """Return the result of an error; an unproven bundle is a verdict of the gate and no failure."""
    status: Status = "not-faster" if isinstance(error, UnprovenError) else "failed"
    return Outcome(
        environment=environment, status=status, reason=explained(error, options_place), node=node,
        rejected=is_rejection(error), given_up=isinstance(error, GivenUpError),
        limited=is_limited(error),
    )  # fmt: skip


def explained(error: Exception, options_place: str) -> str:
    """Return the text of an error, with what a registered version's owner can set.

    Args:
        error: error of a step.
        options_place: place of the version's options in words; "" for a file.
    """
    text = plain(error)
    if not options_place or not isinstance(error, DimensionError | OptionError):
        return text
    if isinstance(error, DimensionError) and error.missing:
        return (
            f"inputs have dimensions of unknown size: set {options_place} to "
            f"{json.dumps(error.missing)}, with your sizes; then the version is tried again"
        )
    if options_place in text:
        return text
    return f"{text}; the version's options are {options_place}"


def plain(error: Exception) -> str:
    """Return the text of an error; Collage's own errors are sentences already."""
    text = str(error) or "no details"
    if isinstance(error, CollageError):
        return text
    return f"{type(error).__name__}: {text}"


def is_rejection(error: BaseException) -> bool:
    """Tell whether the model, its options, accuracy or cost is the cause, not the machines."""
    if isinstance(error, LimitError):
        return not error.is_daily
    return isinstance(error, (InputError, GateError))


def is_limited(error: BaseException) -> bool:
    """Tell whether a daily limit of cost is the cause."""
    return isinstance(error, LimitError) and error.is_daily


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


def version_status(outcomes: Sequence[Outcome], options_digest: str = "") -> VersionStatus:
    """Return the tags for the registry: the bundle's digest, or one for each of several environments."""
    bundles = {outcome.environment: outcome.bundle for outcome in outcomes if outcome.bundle}
    alone = next(iter(bundles.values()), "") if len(outcomes) == 1 else pairs(bundles)
    costs = [outcome.cost for outcome in outcomes]
    cost = sum((cost for cost in costs if cost), RunCost(price=0.0)) if all(costs) else None
    return VersionStatus(
        status=overall(outcomes),
        bundle=alone,
        speedup=slowest_speedup(outcomes),
        reason=reasons(outcomes),
        environment=pairs({outcome.environment: outcome.node for outcome in outcomes}),
        options_digest=options_digest,
        node_seconds=cost.node_seconds if cost else None,
        gpu_seconds=cost.gpu_seconds if cost else None,
        price=cost.price if cost else None,
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

"""What came of a version in each environment, and what that means for the version."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from collage.errors import (
    CollageError,
    DamagedError,
    GateError,
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
    """A model that lies in the store, with one request for each environment."""

    model: str
    version: str
    requests: tuple[CompileRequest, ...]


class Outcome(_Document):
    """What came of one environment.

    Attributes:
        node: digest of what its node said of itself; "" where it was not asked.
        bundle: what `alias` stands for now; "" where nothing passed the gate.
        rejected: the model itself cannot be used: running it again changes nothing.
    """

    environment: str
    status: Status
    reason: str
    node: str = ""
    bundle: str = ""
    alias: str = ""
    moved: bool = False
    rejected: bool = False
    result: CompileResult | None = None

    @property
    def accepted(self) -> bool:
        return self.status == "optimized"

    @property
    def speedup(self) -> float | None:
        return self.result.speedup if self.result else None


def failed(environment: str, error: Exception, node: str = "") -> Outcome:
    """Describe a failure in plain words; a gate that proves nothing is a verdict and no failure."""
    status: Status = "not-faster" if isinstance(error, UnprovenError) else "failed"
    return Outcome(
        environment=environment, status=status, reason=plain(error), node=node,
        rejected=is_rejection(error),
    )  # fmt: skip


def plain(error: Exception) -> str:
    """Write an error for people: Collage's own are sentences already."""
    text = str(error) or "no details"
    if isinstance(error, CollageError):
        return text
    return f"{type(error).__name__}: {text}"


def is_rejection(error: BaseException) -> bool:
    """Tell whether the model, its options or its numbers are at fault, not the machines."""
    return isinstance(error, (InputError, GateError))


def is_infrastructure(error: BaseException) -> bool:
    """Tell whether the same call may well succeed a little later."""
    if isinstance(error, DamagedError):
        return False
    return isinstance(error, (StoreError, RegistryError, ConnectionError, TimeoutError))


def overall(outcomes: Sequence[Outcome]) -> Status:
    """Fold the environments: a version is as good as its worst one."""
    statuses = {one.status for one in outcomes}
    order: tuple[Status, ...] = ("failed", "not-faster", "optimized")
    return next((status for status in order if status in statuses), "failed")


def reasons(outcomes: Sequence[Outcome]) -> str:
    """Write each environment's reason on one line."""
    return "; ".join(f"{one.environment}: {one.reason}" for one in outcomes if one.reason)


def verdict_text(result: CompileResult, promotion: str) -> str:
    """Write how fast the bundle is, and why the alias was moved or not."""
    speed = f"{result.speedup:.2f}x the best original framework; " if result.speedup else ""
    return speed + promotion


def version_status(outcomes: Sequence[Outcome]) -> VersionStatus:
    """Write what the registry keeps: a bundle's digest, or one for each of several environments."""
    bundles = {one.environment: one.bundle for one in outcomes if one.bundle}
    alone = next(iter(bundles.values()), "") if len(outcomes) == 1 else pairs(bundles)
    return VersionStatus(
        status=overall(outcomes),
        bundle=alone,
        speedup=slowest_speedup(outcomes),
        reason=reasons(outcomes),
        environment=pairs({one.environment: one.node for one in outcomes}),
    )


def slowest_speedup(outcomes: Sequence[Outcome]) -> float | None:
    """Return the least speedup of any environment; None where one is not known."""
    found = [one.speedup for one in outcomes]
    return None if not found or None in found else min(one for one in found if one is not None)


def pairs(values: dict[str, str]) -> str:
    """Write `local=0a1b,gpu=2c3d`; the inverse of `parse_pairs`."""
    return ",".join(f"{name}={value}" for name, value in sorted(values.items()) if value)


def parse_pairs(text: str) -> dict[str, str]:
    """Read what `pairs` wrote; whatever is no pair is left out.

    >>> parse_pairs(pairs({"local": "0a1b", "gpu": "2c3d"}))
    {'gpu': '2c3d', 'local': '0a1b'}
    """
    parts = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in parts if name and value}

"""Cost: seconds, or invalid with its reason, or unknown (RFC 0.7 "Util Datatypes").

RFC and upstream use one double with +inf and NaN; NaN breaks every ordering (upstream defect D8), so the
three states are explicit here and only measured costs compare.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import NewType

SHORTEST_S = 1e-9
"""Smallest plausible latency, in seconds: a call and its return take some cycles on any processor, and clocks
tick in nanoseconds. Timers report no less; a record below it was not measured."""

LONGEST_S = 1e6
"""Largest plausible latency, in seconds: eleven days."""

CostKey = NewType("CostKey", str)
"""SHA-256 hex of (region digest, backend identity, environment digest, protocol version)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one candidate.

    Attributes:
        seconds: latency of one call, in seconds, at least `SHORTEST_S`; +inf if invalid, NaN if unknown.
        low: lower bound of the median at 95 % confidence, in seconds; NaN without an interval.
        high: upper bound of the median at 95 % confidence, in seconds; NaN without an interval.
        samples: measured latencies, in seconds.
        reason: reason of an invalid cost, else "".
        build_s: time of the build, in seconds; of an invalid cost, the time until the failure.
        error: error of a kernel in reduced precision (`collage.runtime.precision`); 0 for all other kernels,
            which must compute the reference's numbers.
        hides_nan: whether the kernel gives a number where the original gives NaN.
    """

    seconds: float
    low: float = math.nan
    high: float = math.nan
    samples: tuple[float, ...] = ()
    reason: str = ""
    build_s: float = 0.0
    error: float = 0.0
    hides_nan: bool = False

    @classmethod
    def invalid(cls, reason: str) -> "Cost":
        return cls(math.inf, math.inf, math.inf, reason=reason)

    @classmethod
    def unknown(cls) -> "Cost":
        return cls(math.nan)

    @property
    def is_valid(self) -> bool:
        """Measured and usable."""
        return math.isfinite(self.seconds)

    @property
    def is_invalid(self) -> bool:
        return math.isinf(self.seconds)

    @property
    def is_unknown(self) -> bool:
        return math.isnan(self.seconds)


@dataclass(frozen=True)
class Environment:
    """Environment of a measurement; a cost of any other environment is a miss."""

    cpu: str
    cpu_features: str
    cores: int
    threads: int
    driver: str
    protocol: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def cost_key(region_digest: str, backend_identity: str, environment: Environment) -> CostKey:
    """Return the key of one candidate's cost.

    Args:
        region_digest: digest of the region.
        backend_identity: name, variant and library versions of the backend.
        environment: the environment of the measurement.
    """
    text = json.dumps([region_digest, backend_identity, environment.digest])
    return CostKey(hashlib.sha256(text.encode()).hexdigest())

"""Cost: seconds, or invalid with its reason, or unknown (RFC 0.7 "Util Datatypes").

RFC and upstream use one double with +inf and NaN; NaN breaks every ordering (upstream defect D8),
so the three states are explicit here and only measured costs compare.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import NewType

SHORTEST_S = 1e-9
"""The least latency that is believed: a call and its return take some cycles on any processor, and clocks
tick in nanoseconds. Timers report no less; a record that says less was not measured."""

LONGEST_S = 1e6
"""The greatest: eleven days."""

CostKey = NewType("CostKey", str)
"""SHA-256 hex of (region digest, backend identity, environment digest, protocol version)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Latency of one call inside the model, in seconds; at least `SHORTEST_S` where it was measured.

    `seconds` is +inf for an invalid candidate and NaN for an unknown one; `low` and `high` bound the
    median at 95 % confidence; `reason` says why a candidate is invalid ("" otherwise). `error` is that
    of a kernel in reduced precision (`collage.runtime.precision`), 0 for all others, which must compute
    the reference's numbers.
    """

    seconds: float
    low: float = math.nan
    high: float = math.nan
    samples: tuple[float, ...] = ()
    reason: str = ""
    build_s: float = 0.0
    error: float = 0.0

    @classmethod
    def invalid(cls, reason: str) -> "Cost":
        return cls(math.inf, math.inf, math.inf, (), reason)

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
    """What a cost is true for; any difference is another environment, hence a miss."""

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
    """Key of one candidate's cost; `backend_identity` holds name, variant and library versions."""
    text = json.dumps([region_digest, backend_identity, environment.digest])
    return CostKey(hashlib.sha256(text.encode()).hexdigest())

"""What a compile can be told; every field has a default that needs no configuration."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from collage.errors import OptionError

if TYPE_CHECKING:
    from collage.backends.base import Backend


DeviceName = Literal["cpu", "cuda"]
"""Where kernels can run; a backend names its own."""

DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)


class Effort(NamedTuple):
    """Seconds for measuring candidates, for refining plans and for tuning kernels."""

    measure_budget_s: float
    refine_s: float
    tune_s: float


EFFORTS = {
    "quick": Effort(20.0, 0.0, 0.0),
    "normal": Effort(240.0, 40.0, 30.0),
    "thorough": Effort(900.0, 180.0, 600.0),
}

_NORMAL = EFFORTS["normal"]

DEFAULT_TOLERANCE = 1e-2
"""A hundredth of the output's scale; whole models in bfloat16 err by 0.2-0.9 % (benchmarks)."""


class Precision(StrEnum):
    """What kernels may compute in.

    `fp32`: as the model says, nothing less. `auto`: also in less precision, where it measures faster
    and the whole plan stays within the tolerance.
    """

    FP32 = "fp32"
    AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """Options of one compile.

    Attributes:
        backends: in order of priority at equal cost: names, `module:Class`, or `Backend` objects
            (one of your own, or `with_rule(...)`); None means all that are available.
        device: where kernels run, one of `DEVICES`.
        cuda_graphs: on a GPU, whether kernels are captured in CUDA graphs where all of them allow it.
        threads: threads of every kernel; None means one a physical core.
        dims: values of named dynamic dimensions, e.g. `{"batch": 1}`.
        shapes: input shapes, one mapping a shape set; several make a dispatcher.
        measure_budget_s: seconds that the search may spend on measuring; waiting for machines is free.
        workers: worker processes that build and measure.
        timeout_s: hard limit of one candidate's build and measurement.
        memory_bytes: hard limit of one worker's resident memory.
        end_to_end_plans: additive-best plans that are assembled and measured whole.
        refine_s: seconds for assembling and measuring plans that may be faster than the best one so far.
        tune_s: seconds for trying schedules of native kernels that could change the plan; with 0 only
            those that the store has already are used.
        verify_s: seconds of the final interleaved comparison, per contender; it goes on to ten times as long
            where nothing is proven before.
        fallback: whether the original file itself ships where nothing is proven as fast as the frameworks.
        allow_slower: whether a bundle is written though it is not proven to be as fast as they are; the
            manifest says so, and it is refused where bundles are published or served.
        seed: of the random inputs.
        precision: `fp32`, or `auto` to allow bfloat16, on a GPU TF32, where the machine has it.
        tolerance: error budget of `auto`: max |actual - fp32| / max |fp32| of every output, where
            probabilities count with a scale of 1 and integers must be equal
            (`collage.runtime.precision`); held on the gate's inputs and on ten more seeds.
        cache_dir: the local store.
        store: address of a store that shares costs between machines; None shares nothing.
    """

    backends: "tuple[str | Backend, ...] | None" = None
    device: DeviceName = "cpu"
    cuda_graphs: bool = True
    threads: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    measure_budget_s: float = _NORMAL.measure_budget_s
    workers: int = 2
    timeout_s: float = 30.0
    memory_bytes: int = 4 << 30
    end_to_end_plans: int = 4
    refine_s: float = _NORMAL.refine_s
    tune_s: float = _NORMAL.tune_s
    verify_s: float = 2.0
    fallback: bool = True
    allow_slower: bool = False
    seed: int = 0
    precision: Precision | str = Precision.FP32
    tolerance: float = DEFAULT_TOLERANCE
    cache_dir: Path | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        for name in ("measure_budget_s", "workers", "timeout_s", "memory_bytes", "verify_s"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("refine_s", "tune_s", "seed"):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name} must not be negative, it is {getattr(self, name)}")
        if self.device not in DEVICES:
            raise OptionError(f"unknown device {self.device!r}; there are {', '.join(DEVICES)}")
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads must be at least 1, not {self.threads}")
        if self.end_to_end_plans < 1:
            raise OptionError("end_to_end_plans must be at least 1")
        if self.precision not in set(Precision):
            choices = " or ".join(Precision)
            raise OptionError(f"precision must be {choices}, not {self.precision!r}")
        if not 0 < self.tolerance < math.inf:
            raise OptionError(f"tolerance must be above 0 and finite, not {self.tolerance}")

    @property
    def store_dir(self) -> Path:
        """The local store: `cache_dir`, else `collage` under the user's cache directory."""
        if self.cache_dir is not None:
            return self.cache_dir
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "collage"

    @property
    def may_reduce(self) -> bool:
        """Tell whether kernels may compute in less than float32."""
        return self.precision == Precision.AUTO

    @property
    def thread_count(self) -> int:
        return self.threads or physical_cores()


def physical_cores() -> int:
    """Count the physical cores that this process may run on."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(topology.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))

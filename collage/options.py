"""Options of a compile; every field has a default. Requests and the command line derive from this class."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from collage.errors import OptionError

if TYPE_CHECKING:
    from collage.backends.base import Backend


DeviceName = Literal["cpu", "cuda"]
"""Device of kernels; each backend has one."""

DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)


MACHINE_FIELDS = frozenset({"allow_slower", "cache_dir", "device", "store", "threads"})
"""Options that are no part of `RequestOptions`: a request or the machine that works on it sets them."""


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
    """Precision of kernels.

    `fp32`: the precision of the model. `auto`: reduced precision too, for kernels with a lower measured
    latency in a plan within the tolerance.
    """

    FP32 = "fp32"
    AUTO = "auto"


@dataclass(frozen=True)
class Options:
    """Options of one compile.

    Attributes:
        backends: names, `module:Class`, or `Backend` objects (one of your own, or `with_rule(...)`), in
            order of priority at equal cost; None: all available backends.
        device: device of the kernels, one of `DEVICES`, default "cpu".
        cuda_graphs: whether kernels on a GPU are captured in CUDA graphs if all of them allow it.
        threads: threads of every kernel; None: one per physical core.
        dims: values of named dynamic dimensions, e.g. `{"batch": 1}`.
        shapes: input shapes, one mapping per shape set; several sets make a dispatcher.
        measure_budget_s: limit of the search's measurements, in seconds; waiting for machines is free.
        workers: number of worker processes for builds and measurements.
        timeout_s: hard limit of one candidate's build and measurement, in seconds.
        memory_bytes: hard limit of one worker's resident memory, in bytes.
        end_to_end_plans: number of additive-best plans to assemble and measure as a whole.
        refine_s: time for plans that may be faster than the best one so far, in seconds.
        tune_s: time for schedules of native kernels that could change the plan, in seconds; 0: only
            schedules from the store.
        verify_s: time of each target in the final round, in seconds; up to ten times as long without a
            proof.
        fallback: whether the original file itself ships if nothing is proven as fast as the frameworks.
        allow_slower: whether a bundle without this proof is written; its manifest says so, and stores and
            servers refuse it.
        seed: seed of the random inputs.
        precision: `fp32`, or `auto` to allow bfloat16 and, on a GPU, TF32 if the machine has it.
        tolerance: error budget of `auto`: max |actual - fp32| / max |fp32| of every output, with a scale
            of 1 for probabilities and equality for integers (`collage.runtime.precision`); for the
            gate's inputs and ten more seeds.
        cache_dir: folder of the local store; None: `collage` in the user's cache folder.
        store: address of a store that shares costs between machines; None: no sharing.
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

    def to_fields(self) -> dict[str, object]:
        """Return the fields of a request by name: all but `MACHINE_FIELDS`.

        Raises:
            OptionError: a backend is an object; other machines know backends by name only.
        """
        if any(not isinstance(backend, str) for backend in self.backends or ()):
            raise OptionError("a request names its backends; give names or module:Class")
        return {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.name not in MACHINE_FIELDS
        }

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
        except OSError:  # the kernel does not tell: the processor counts as a core
            cores.add(str(cpu))
    return max(1, len(cores))

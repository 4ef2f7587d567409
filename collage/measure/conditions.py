"""Conditions of measurements: what costs are valid for, and the limits of the processes that measure."""

from dataclasses import dataclass

from collage.cost import Environment
from collage.measure.cache_flush import CacheFlush
from collage.runtime.target import Target

DEFAULT_CACHE_FLUSH = CacheFlush(64 << 20)
"""For callers without the size of the model."""


@dataclass(frozen=True)
class MeasuringConditions:
    """Conditions that costs depend on.

    Attributes:
        environment: hardware, system and threads.
        device: device of the kernels.
        cache_flush: cache flush before every timed call on a CPU.
    """

    environment: Environment
    device: Target = Target.CPU
    cache_flush: CacheFlush = DEFAULT_CACHE_FLUSH


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """Limits of the worker processes of one measurer.

    Attributes:
        workers: largest number of worker processes.
        timeout_s: time limit of one candidate's build and timing, in wall seconds.
        memory_bytes: limit of a worker's resident memory without mapped files, in bytes.
    """

    workers: int = 1
    timeout_s: float = 30.0
    memory_bytes: int = 4 << 30

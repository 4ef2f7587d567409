"""Messages between the measurer and its worker processes.

A request's frame is the length of its pickle (8 bytes, little endian) and the pickle: a worker
trusts its parent. The parent trusts no worker (`measure.answers`). The order is: `Setup`; `Ready`
or `KernelRefused`; then for each `Task`: `Built`, answered by `Go`, then `MeasurementOutcome`, or
an immediate `MeasurementOutcome` for a candidate found invalid before timing. End of file ends a
worker.

A tuning worker (`collage.tuning.tuning_worker`) gets a `Setup` too. Its answers to a `TuneTask` are one
`Trial` for each schedule, and `TuningEnded`.
"""

import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from collage.backends.base import BuildContext
from collage.cost.cost import Cost
from collage.measure.call_overhead import DispatchOverhead
from collage.measure.measurement_request import MeasurementRequest
from collage.runtime.target import Target

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class KernelFolder:
    """A folder of kernel files (`collage.measure.kernel_file`) that pass between processes.

    Attributes:
        path: the folder.
        builds: whether workers build kernels into it without timing; otherwise they time what it has.
    """

    path: Path
    builds: bool = False


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Setup of a worker, sent once.

    Attributes:
        loader: "module:callable" of the kernel builder; it is called with this setup.
        functions: name and simplified ONNX file of each function.
        backends: class paths (`collage.backends.registry.class_path`).
        build: threads and folders of every kernel.
        reference_dir: folder with the reference value of every activation.
        memory_bytes: limit of resident memory in bytes, enforced by the parent.
        cache_flush_bytes: size of the cache flush before every timed call, in bytes.
        measure_dispatch_overhead: measure the dispatch overhead for `Ready`.
        device: device of the kernels.
        kernels: folder of kernel files; None: the worker builds its kernels and times them.
        has_samples: the user gave values of inputs, so messages of runs travel without numbers.
    """

    loader: str
    functions: tuple[tuple[str, Path], ...]
    backends: tuple[str, ...]
    build: BuildContext
    reference_dir: Path
    memory_bytes: int
    cache_flush_bytes: int
    measure_dispatch_overhead: bool
    device: Target = Target.CPU
    kernels: KernelFolder | None = None
    has_samples: bool = False

    @property
    def builds(self) -> bool:
        """Tell whether the worker builds kernels and times none."""
        return self.kernels is not None and self.kernels.builds

    @property
    def threads(self) -> int:
        return self.build.threads


@dataclass(frozen=True)
class Ready:
    """The worker waits for tasks. `boundary` is None without `Setup.measure_dispatch_overhead`."""

    boundary: DispatchOverhead | None = None


@dataclass(frozen=True)
class KernelRefused:
    """The worker cannot start."""

    reason: str


@dataclass(frozen=True)
class Task:
    """Build and time `work`; see `timing.Timer.time` for the other fields."""

    work: MeasurementRequest
    best_s: float
    dispatch_overhead_s: float
    resolution_s: float = 0.0


@dataclass(frozen=True)
class Built:
    """The kernel's outputs are correct; the worker waits for `Go` before timing."""


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class MeasurementOutcome:
    """Result of a task. With `Setup.builds`, the cost is the build time.

    Attributes:
        durable: False for a failure of the machine, not of the candidate (a full disk).
        drifted: True if the machine's speed changed during timing.
        built: True if the worker built the kernel.
    """

    cost: Cost
    durable: bool = True
    drifted: bool = False
    built: bool = False


@dataclass(frozen=True)
class TuneTask:
    """Try `trials` more schedules of the request's region.

    Attributes:
        seed: seed of the schedules, at least 1.
        measured: traces with their latencies in seconds, from earlier searches.
    """

    work: MeasurementRequest
    trials: int
    seed: int
    measured: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Trial:
    """A tried schedule.

    Attributes:
        trace: trace of the schedule, as JSON.
        latency_s: latency in seconds; +inf for a failed trial.
        trial_s: duration of the trial, in seconds.
        reason: reason of a failure, or "".
        lost: True if the trial lost the device's context; the process ends after it.
    """

    trace: str
    latency_s: float
    trial_s: float
    reason: str = ""
    lost: bool = False


@dataclass(frozen=True)
class TuningEnded:
    """End of a task's trials; `reason` is "" if further trials are possible."""

    reason: str = ""


Request = Setup | Task | Go | TuneTask
Answer = Ready | KernelRefused | Built | MeasurementOutcome | Trial | TuningEnded


def pack_request(message: Request) -> bytes:
    """Return the frame of a request."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def read_request(stream: BinaryIO) -> Request | None:
    """Return the next request, or None at the end of file."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        return None
    message: Request = pickle.loads(data)
    return message

"""What the measurer and its worker processes say to each other.

A request's frame is the length of its pickle (8 bytes, little endian) and the pickle: the worker is what
its parent started, and believes it. The other way nothing is believed (`measure.answers`). The order is:
`Setup`; `Ready` or `Refused`; then for each `Task`: `Built`, answered by `Go`, then `Outcome`, or an
`Outcome` at once for a candidate that is invalid before it is timed. End of file ends a worker.

A process that tunes (`collage.tuning.tuning_worker`) gets a `Setup` too; then each `TuneTask` is
answered by one `Trial` a schedule and, when there are no more, `TuningEnded`.
"""

import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from collage.cost.cost import Cost
from collage.measure.call_overhead import Boundary
from collage.measure.measurement_request import Work

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know once.

    Attributes:
        loader: "module:callable" that makes the workshop from this setup.
        functions: name and simplified ONNX file of each function.
        backends: class paths (`collage.backends.registry.class_path`).
        threads: of every kernel.
        reference_dir: the reference value of every activation.
        memory_bytes: limit of resident memory, enforced by the parent.
        sweep_bytes: swept before every timed call.
        measure_boundary: tell the virtual machine's cost of a call in `Ready`.
        recipes: see `Backend.recipes`.
        cache: see `Backend.cache`.
        device: where the kernels run.
        kernels: kernels that were built elsewhere are in this folder; None builds them.
        builds: build kernels into that folder, and time nothing.
    """

    loader: str
    functions: tuple[tuple[str, Path], ...]
    backends: tuple[str, ...]
    threads: int
    reference_dir: Path
    memory_bytes: int
    sweep_bytes: int
    measure_boundary: bool
    recipes: Path | None = None
    cache: Path | None = None
    device: str = "cpu"
    kernels: Path | None = None
    builds: bool = False


@dataclass(frozen=True)
class Ready:
    """The worker waits for tasks. `boundary` is None unless it was asked for."""

    boundary: Boundary | None = None


@dataclass(frozen=True)
class Refused:
    """The worker cannot work at all."""

    reason: str


@dataclass(frozen=True)
class Task:
    """Build and time `work`; `boundary_s` is added to its cost (see `timing` for the others)."""

    work: Work
    best_s: float
    boundary_s: float
    resolution_s: float = 0.0


@dataclass(frozen=True)
class Built:
    """The kernel computes the right numbers; the worker waits for `Go` to time it."""


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class Outcome:
    """`durable` is False when the failure says nothing about the candidate (a full disk).

    `built` tells whether a kernel was built for it. The cost of a task of a setup that builds is the
    seconds which the build took.
    """

    cost: Cost
    durable: bool = True
    drifted: bool = False
    built: bool = False


@dataclass(frozen=True)
class TuneTask:
    """Try `trials` more schedules of the work's region.

    `measured` are traces with their seconds, to go on from; `seed` decides which schedules are drawn.
    """

    work: Work
    trials: int
    seed: int
    measured: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Trial:
    """A schedule that was tried: its trace, its latency (+inf with the reason), the time it took.

    One that `lost` the device's context is the last of its process.
    """

    trace: str
    latency_s: float
    trial_s: float
    reason: str = ""
    lost: bool = False


@dataclass(frozen=True)
class TuningEnded:
    """No more trials of this task; `reason` says why none can follow, "" where they can."""

    reason: str = ""


Request = Setup | Task | Go | TuneTask
Answer = Ready | Refused | Built | Outcome | Trial | TuningEnded


def pack_request(message: Request) -> bytes:
    """Return the frame that carries a request."""
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

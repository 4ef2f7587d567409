"""The machine's peaks, measured: what no kernel that does a region's work directly can beat.

A bound is honest only where nothing beats it. Data may be in a cache, so the bandwidth of a bound is
the best copy between buffers of any size, the smallest cache included; the memory's own bandwidth (a
copy larger than every cache) is kept beside it, to show and not to bound with. FLOP/s come from the
best single-precision product. Every rate is the best of many short runs of one thread, times the
threads: sharing can only make it less, so the bound stays on the safe side.

A GPU's are what it says of itself at its highest clocks: its processors' FLOP/s in float32 without tensor
cores, which is what TVM's kernels can reach, and its memory's bandwidth, since costs are those of a cold
cache.

Measured in a process of its own (`python -m collage.measure.peaks`), because NumPy's product takes
its number of threads when it is loaded. Another process on the machine can halve a rate, so every
compile that measures anything measures them again, and the store keeps the highest of each, under
the environment's digest.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from collage.cost import Environment
from collage.errors import MeasureError, StoreError
from collage.measure.device import capability_of
from collage.runtime.child_environment import child_environment

PRODUCT_SIZES = (256, 384, 512, 1024)
COPY_BYTES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
MEMORY_COPY_BYTES = 1 << 28
SECONDS_EACH = 0.15
TIMEOUT_S = 60.0
UNTOLD = 1e15
"""Stands for a rate that a GPU does not tell: none bounds a kernel by it."""


@dataclass(frozen=True)
class Peaks:
    """Highest measured rates of all threads together; a copy of N bytes moves 2 N."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes_per_s: float

    def bound_s(self, moved_bytes: int, flops: int) -> float:
        """Return the least seconds of a kernel that moves and computes that much.

        >>> Peaks(100.0, 10.0, 5.0).bound_s(20, 100)
        2.0
        """
        return max(moved_bytes / self.bytes_per_s, flops / self.flops_per_s)

    def limit(self, moved_bytes: int, flops: int) -> str:
        """Name what the bound comes from: "bytes" or "flops"."""
        by_bytes = moved_bytes / self.bytes_per_s >= flops / self.flops_per_s
        return "bytes" if by_bytes else "flops"


def machine_peaks(environment: Environment, store_dir: Path, again: bool = True) -> Peaks:
    """Measure this machine's peaks; return and keep the highest rates that the store has seen.

    Args:
        environment: what the peaks belong to.
        store_dir: where they are kept.
        again: measure although the store knows them.

    Raises:
        MeasureError: the measuring process failed.
        StoreError: the store cannot be written.
    """
    file = store_dir / "peaks" / f"{environment.digest}.json"
    stored = None
    with suppress(
        OSError, ValueError, TypeError
    ):  # a file that is absent or damaged is written anew
        stored = Peaks(**json.loads(file.read_text()))
    if stored and not again:
        return stored
    peaks = _measure_apart(environment)
    peaks = highest(peaks, stored) if stored else peaks
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(peaks)))
        partial.replace(file)
    except OSError as error:
        raise StoreError(f"the store cannot be written: {error.strerror}: {file}") from error
    return peaks


def highest(first: Peaks, second: Peaks) -> Peaks:
    """Take the higher of each rate.

    >>> highest(Peaks(1.0, 5.0, 2.0), Peaks(3.0, 4.0, 1.0))
    Peaks(flops_per_s=3.0, bytes_per_s=5.0, memory_bytes_per_s=2.0)
    """
    mine, theirs = asdict(first), asdict(second)
    return Peaks(**{name: max(mine[name], theirs[name]) for name in mine})


def _measure_apart(environment: Environment) -> Peaks:
    on_gpu = capability_of(environment.driver) != ""
    single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "collage.measure.peaks", *(["--gpu"] if on_gpu else [])]
    try:
        done = subprocess.run(
            command, env=child_environment() | single, capture_output=True, text=True, check=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        raise MeasureError(f"the machine's peaks could not be measured: {error}") from error
    rates = json.loads(done.stdout)
    threads = 1 if on_gpu else environment.threads
    return Peaks(**{name: rate * threads for name, rate in rates.items()})


def gpu_peaks() -> Peaks:
    """Ask this machine's GPU."""
    from collage.measure.cuda_device import CudaDevice

    flops_per_s, bytes_per_s = (rate or UNTOLD for rate in CudaDevice().rates())
    return Peaks(flops_per_s, bytes_per_s, bytes_per_s)


def measure_one_thread() -> Peaks:
    """Measure the peaks of one thread; takes about two seconds."""
    copies = [_copy_rate(size) for size in COPY_BYTES]
    memory = _copy_rate(MEMORY_COPY_BYTES)
    return Peaks(max(map(_product_rate, PRODUCT_SIZES)), max(*copies, memory), memory)


def _product_rate(size: int) -> float:
    import numpy as np

    lhs, rhs, result = (np.ones((size, size), np.float32) for _ in range(3))
    return 2 * size**3 / _best_s(lambda: np.matmul(lhs, rhs, out=result))


def _copy_rate(size_bytes: int) -> float:
    import numpy as np

    source, target = (np.ones(size_bytes, np.uint8) for _ in range(2))
    return 2 * size_bytes / _best_s(lambda: np.copyto(target, source))


def _best_s(run: Callable[[], object]) -> float:
    run()
    best, end = float("inf"), time.perf_counter() + SECONDS_EACH
    while time.perf_counter() < end:
        start = time.perf_counter_ns()
        run()
        best = min(best, (time.perf_counter_ns() - start) * 1e-9)
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print this machine's peaks.")
    parser.add_argument("--gpu", action="store_true", help="those of its GPU")
    print(json.dumps(asdict(gpu_peaks() if parser.parse_args().gpu else measure_one_thread())))

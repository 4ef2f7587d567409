"""The machine's measured peaks: upper bounds for kernels without algorithmic savings.

A bound must hold for every kernel. Data may be in a cache, so the bound uses the bandwidth of the fastest
copy between buffers of any size, those in the smallest cache included. The memory's own bandwidth (a copy
larger than every cache) is kept beside it for reports. FLOP/s come from the fastest single-precision
product. Every rate is the best of many short runs of one thread, times the threads: sharing only lowers
the real rate, so the bound stays valid.

Peaks of a GPU are the driver's figures at the highest clocks: float32 FLOP/s without tensor cores, the
limit of TVM's kernels, and memory bandwidth, since costs have cold caches.

A process of its own measures them (`python -m collage.measure.peaks`), because NumPy fixes its number of
threads when it is loaded. Another process on the machine can halve a rate. So every compile with
measurements measures the peaks again, and the store keeps the highest rates under the environment's digest.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from collage.cost import Environment
from collage.errors import MeasureError, StoreError
from collage.measure.cuda_device import CudaDevice
from collage.measure.device import capability_of
from collage.runtime.child_environment import child_environment

PRODUCT_SIZES = (256, 384, 512, 1024)
COPY_BYTES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
MEMORY_COPY_BYTES = 1 << 28
SECONDS_EACH = 0.15
TIMEOUT_S = 60.0
UNKNOWN_RATE = 1e15
"""Rate in place of one not reported by the GPU: too high to bound a kernel."""


@dataclass(frozen=True)
class Peaks:
    """Highest measured rates of all threads together; a copy of N bytes moves 2 N."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes_per_s: float

    def bound_s(self, moved_bytes: int, flops: int) -> float:
        """Return the lower bound in seconds of a kernel with this much traffic and computation.

        >>> Peaks(100.0, 10.0, 5.0).bound_s(20, 100)
        2.0
        """
        return max(moved_bytes / self.bytes_per_s, flops / self.flops_per_s)

    def limit(self, moved_bytes: int, flops: int) -> str:
        """Return the limiting resource of the bound: "bytes" or "flops"."""
        by_bytes = moved_bytes / self.bytes_per_s >= flops / self.flops_per_s
        return "bytes" if by_bytes else "flops"


def machine_peaks(environment: Environment, store_dir: Path, again: bool = True) -> Peaks:
    """Measure this machine's peaks; return and store the highest rates so far.

    Args:
        environment: environment of the peaks.
        store_dir: folder of the local store.
        again: measure even if the store has peaks; default True.

    Raises:
        MeasureError: the measuring process failed.
        StoreError: the store cannot be written.
    """
    file = _peaks_file(environment, store_dir)
    stored = stored_peaks(environment, store_dir)
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


def stored_peaks(environment: Environment, store_dir: Path) -> Peaks | None:
    """Return the highest rates so far of an environment; None where the store has none, or a damaged file."""
    try:
        return Peaks(**json.loads(_peaks_file(environment, store_dir).read_text()))
    except (OSError, ValueError, TypeError):  # measured anew
        return None


def _peaks_file(environment: Environment, store_dir: Path) -> Path:
    return store_dir / "peaks" / f"{environment.digest}.json"


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
    """Return the peaks reported by this machine's GPU."""
    flops_per_s, bytes_per_s = (rate or UNKNOWN_RATE for rate in CudaDevice().rates())
    return Peaks(flops_per_s, bytes_per_s, bytes_per_s)


def measure_one_thread() -> Peaks:
    """Measure the peaks of one thread; takes about two seconds."""
    copies = [_copy_rate(size) for size in COPY_BYTES]
    memory = _copy_rate(MEMORY_COPY_BYTES)
    return Peaks(max(map(_product_rate, PRODUCT_SIZES)), max(*copies, memory), memory)


def _product_rate(size: int) -> float:
    lhs, rhs, result = (np.ones((size, size), np.float32) for _ in range(3))
    return 2 * size**3 / _best_s(lambda: np.matmul(lhs, rhs, out=result))


def _copy_rate(size_bytes: int) -> float:
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

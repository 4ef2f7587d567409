"""Kernels of one region by several backends, called in turn: the common part of the benchmarks of kernels."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from collage.backends.base import Backend, BuildContext
from collage.backends.registry import available_backends
from collage.frontend import Function
from collage.frontend.region import region_bytes_and_flops, region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.measure.environment import last_level_cache_bytes
from collage.runtime.arrays import aligned_copy

Region = TypeVar("Region")


@dataclass(frozen=True)
class TimedKernel:
    """A kernel with its buffers, and the times of its calls, in nanoseconds."""

    name: str
    run: Callable[[], object]
    nanoseconds: list[int]

    @property
    def microseconds(self) -> float:
        return statistics.median(self.nanoseconds) / 1e3


def benchmark_targets(
    function: Function, backends: list[Backend], context: BuildContext
) -> Iterator[TimedKernel]:
    """Compile the function with every backend in every variant."""
    names, results = region_values(function, function.graph.everything)
    types = function.graph.types
    random = np.random.default_rng(1)
    for backend in backends:
        for variant in backend.variants:
            kernel = backend.compile(function, function.graph.everything, context, variant)
            call, constants = callable_kernel(kernel, context.threads)
            arrays = [random.standard_normal(types[name].shape, np.float32) for name in names]
            arrays += [*constants, *(np.zeros(types[name].shape, np.float32) for name in results)]
            tensors = as_tensors([aligned_copy(array) for array in arrays])
            label = f"{backend.name} {variant}".strip()
            yield TimedKernel(label, partial(call, *tensors), [])


def measure(targets: list[TimedKernel], sweep: np.ndarray | None, seconds: float) -> None:
    """Call all targets in turn for about `seconds`, after one untimed call of each."""
    for target in targets:
        target.nanoseconds.clear()
        target.run()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(targets[0].nanoseconds) < 5:
        for target in targets:
            if sweep is not None:
                sweep.max()
            else:
                target.run()
            start = time.perf_counter_ns()
            target.run()
            target.nanoseconds.append(time.perf_counter_ns() - start)


def row(function: Function, targets: list[TimedKernel], own: str) -> str:
    """Return the time of each target, the GFLOP/s of the best of `own`, and its speedup over the best
    library."""
    flops = region_bytes_and_flops(function, function.graph.everything)[1]
    ours = min(target.microseconds for target in targets if target.name.startswith(own))
    best = min(target.microseconds for target in targets if not target.name.startswith(own))
    times = "".join(
        f"{target.microseconds:>{max(9, len(target.name) + 2)}.0f}" for target in targets
    )
    return f"{times}{flops / ours / 1e3:10.0f}{best / ours:8.2f}x"


def compare_regions(
    description: str,
    regions: Sequence[Region],
    function_of: Callable[[Region, Path], Function],
    own: str,
    *,
    libraries: tuple[str, ...],
) -> None:
    """Parse the command line, and print a row for each region: cold caches first, then hot ones.

    Args:
        description: description of the command.
        regions: regions, each with a title as its text.
        function_of: builder of the function of a region in a folder.
        own: name of the backend that is compared with the best library.
        libraries: names of the other backends.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    backends = available_backends((*libraries, own))
    context = BuildContext(arguments.threads)
    width = max(len(str(region)) for region in regions) + 2
    sweep = np.ones(last_level_cache_bytes() * 3 // 2 // 8, np.uint64)
    for title, buffer in (("cold", sweep), ("hot", None)):
        for number, region in enumerate(regions):
            with tempfile.TemporaryDirectory() as folder:
                function = function_of(region, Path(folder))
                targets = list(benchmark_targets(function, backends, context))
                if number == 0:
                    names = "".join(
                        f"{target.name:>{max(9, len(target.name) + 2)}}" for target in targets
                    )
                    print(f"\n{title:<{width}}{names}{'GFLOP/s':>10}{'ratio':>9}")
                measure(targets, buffer, arguments.seconds)
                print(f"{region!s:<{width}}{row(function, targets, own)}", flush=True)

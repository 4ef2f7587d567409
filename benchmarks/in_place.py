"""Isolated and in-context times of a plan's kernels: `python -m benchmarks.in_place BUNDLE MODEL`.

A prediction adds up isolated kernel times. This benchmark times the same kernels on the same buffers also one
after another, in the order of the executable, in turns with each isolated way; one thread. `ratio` is the
isolated time over the in-context time: below 1, predictions are too low. The isolated ways are
    measured   cache flush, then the inputs are rewritten (as in `collage.measure`)
    cold       the inputs are rewritten before the cache flush: nothing is in the caches
    pages      as measured, with small pages in the flush, which evicts address translations too
    dirty      as measured, with writes in the flush: dirty cache lines have to go to memory first
Numbers are the lower quartiles of `--rounds` samples, for robustness on a busy machine.
"""

import argparse
import mmap
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tvm_ffi

from collage.backends.base import BuildContext
from collage.backends.registry import available_backends
from collage.cli.option_arguments import add_option, written_options
from collage.frontend import Function, import_model
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.region import region_values
from collage.graph.index_set import index_set
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.options import Options
from collage.pipeline.search_stage import model_sweep
from collage.report.data import RegionReport
from collage.report.stored_report import read_report
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin
from collage.runtime.target import Target

WAYS = ("measured", "cold", "pages", "dirty")


@dataclass(frozen=True)
class Kernel:
    """A region's kernel with its arguments; `inputs` alias its input buffers."""

    label: str
    run: Callable[[], object]
    inputs: Sequence[np.ndarray]

    def seconds(self) -> float:
        start = time.perf_counter_ns()
        self.run()
        return (time.perf_counter_ns() - start) * 1e-9

    def rewrite(self) -> None:
        for array in self.inputs:
            np.copyto(array, array)


def kernels_of(function: Function, regions: Sequence[RegionReport]) -> list[Kernel]:
    """Compile the regions of all backends; regions share values, each value in its own buffer."""
    reference = reference_values(function, random_inputs(function, seed=0))
    values = {name: aligned_copy(value) for name, value in reference.items()}
    backends = {backend.name: backend for backend in available_backends(None)}
    kernels = []
    for region in regions:
        if region.backend not in backends or region.measured_s is None:
            continue
        nodes = index_set(region.nodes)
        kernel = backends[region.backend].compile(function, nodes, BuildContext(1), region.variant)
        call, constants = callable_kernel(kernel, 1)
        inputs, outputs = (
            [values[backend] for backend in names] for names in region_values(function, nodes)
        )
        written = [] if getattr(kernel, "allocates", False) else outputs
        tensors = as_tensors([*inputs, *constants, *written])
        label = f"{region.backend} {region.variant}".strip()
        kernels.append(Kernel(label, partial(call, *tensors), inputs))
    return kernels


class Alone:
    """Isolated timer of kernels, in each of the `WAYS`."""

    def __init__(self, size: int) -> None:
        self._large = np.ones(size // 8, np.uint64)
        self._map = mmap.mmap(-1, size)
        self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self._small = np.frombuffer(self._map, np.uint64)
        self._small[:] = 1
        self._empty = tvm_ffi.get_global_func("testing.nop")

    def seconds(self, kernel: Kernel, way: str) -> float:
        if way == "cold":
            kernel.rewrite()
        if way == "dirty":
            np.bitwise_or(self._large, 0, out=self._large)
        else:
            (self._small if way == "pages" else self._large).max()
        if way != "cold":
            kernel.rewrite()
        self._empty()
        return kernel.seconds()


def quartile(samples: Sequence[float]) -> float:
    return sorted(samples)[len(samples) // 4]


def compare(kernels: Sequence[Kernel], alone: Alone, rounds: int) -> list[dict[str, float]]:
    """Return the seconds of each kernel in context and in each isolated way."""
    samples = [defaultdict[str, list[float]](list) for _ in kernels]
    for _ in range(rounds):
        for way in WAYS:
            for kernel, kernel_samples in zip(kernels, samples, strict=True):
                kernel_samples[way].append(alone.seconds(kernel, way))
        for timed in (False, False, True):
            for kernel, kernel_samples in zip(kernels, samples, strict=True):
                seconds = kernel.seconds()
                if timed:
                    kernel_samples["in place"].append(seconds)
    return [
        {name: quartile(seconds) for name, seconds in kernel_samples.items()}
        for kernel_samples in samples
    ]


def show(kernels: Sequence[Kernel], rows: Sequence[dict[str, float]]) -> None:
    """Print the sums by backend and their total."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel, times in zip(kernels, rows, strict=True):
        for label in (kernel.label, "all"):
            sums[label]["kernels"] += 1
            for name, seconds in times.items():
                sums[label][name] += seconds
    print(f"| kernels | number | in place ms | {' | '.join(f'{way} ms (ratio)' for way in WAYS)} |")
    print("|---" * (3 + len(WAYS)) + "|")
    for label, row in sorted(sums.items(), key=lambda entry: entry[1]["in place"]):
        cells = [f"{row[way] * 1e3:.2f} ({row[way] / row['in place']:.3f})" for way in WAYS]
        first = f"{label} | {row['kernels']:.0f} | {row['in place'] * 1e3:.2f}"
        print(f"| {first} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("model", type=Path)
    add_option(parser, "shapes")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    load_plugin()
    tvm_ffi.get_global_func("collage.set_threads")(1)
    regions = read_report(arguments.bundle).functions[0].regions
    with tempfile.TemporaryDirectory() as folder:
        shapes = Options(**written_options(arguments)).shapes
        model = import_model(arguments.model, shapes=shapes, work_dir=Path(folder))
        function = model.functions[0]
        kernels = kernels_of(function, regions)
        rows = compare(
            kernels, Alone(model_sweep(function, Target.CPU).size_bytes), arguments.rounds
        )
    show(kernels, rows)


if __name__ == "__main__":
    main()

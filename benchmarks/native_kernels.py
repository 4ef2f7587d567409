"""TVM's native kernels against ONNX Runtime and OpenVINO: `python -m benchmarks.native_kernels`.

One thread, cold caches (a flush of 64 MB before each call), the backends in turn within one process;
medians in microseconds. `ratio` is the better library's time over TVM's: above 1, TVM wins.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tvm_ffi

from benchmarks.native_regions import REGIONS, make_region
from collage.backends.base import BuildContext
from collage.backends.registry import available_backends
from collage.errors import BackendError
from collage.frontend import Function
from collage.frontend.inputs import random_inputs
from collage.frontend.region import region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel, poisoned_like
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin

BACKENDS = ("tvm", "onnxruntime", "openvino")
SWEEP_WORDS = 1 << 23
Times = Mapping[str, float]


def compiled(function: Function, backend: str) -> tuple[Callable[[], object], list[np.ndarray]]:
    """Return a call of the whole function on one backend, and its output buffers."""
    nodes = (1 << len(function.graph)) - 1
    kernel = available_backends([backend])[0].compile(function, nodes, BuildContext(1))
    call, constants = callable_kernel(kernel, 1)
    inputs, outputs = region_values(function, nodes)
    values = random_inputs(function, seed=7)
    types = function.graph.types
    buffers = [poisoned_like(np.empty(types[name].shape, types[name].dtype)) for name in outputs]
    arguments = as_tensors([*(aligned_copy(values[name]) for name in inputs), *constants, *buffers])
    return lambda: call(*arguments), buffers


def difference(outputs: list[np.ndarray], reference: list[np.ndarray]) -> float:
    """Return the largest absolute difference over the largest magnitude."""
    pairs = zip(outputs, reference, strict=True)
    return max(
        float(np.max(np.abs(a - b)) / max(1e-30, float(np.max(np.abs(b))))) for a, b in pairs
    )


def cold_us(calls: Mapping[str, Callable[[], object]], repeats: int) -> Times:
    """Time the calls in turn, each with cold caches; medians in microseconds."""
    sweep = np.zeros(SWEEP_WORDS)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            sweep += 1.0
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) * 1e6 for name, times in samples.items()}


def row(function: Function, repeats: int) -> tuple[Times, float, float]:
    """Return the times, the build time of TVM's kernel in seconds, and its difference."""
    calls, outputs, build_s = {}, {}, 0.0
    for backend in BACKENDS:
        start = time.perf_counter()
        try:
            calls[backend], outputs[backend] = compiled(function, backend)
        except (BackendError, RuntimeError) as error:
            print(f"  {backend}: {error}")
            continue
        if backend == "tvm":
            build_s = time.perf_counter() - start
        calls[backend]()
    wrong = difference(outputs["tvm"], outputs["onnxruntime"])
    return cold_us(calls, repeats), build_s, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regions whose name contains this")
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    load_plugin()
    tvm_ffi.get_global_func("collage.set_threads")(1)
    print(
        f"{'region':36}" + "".join(f"{name:>12}" for name in BACKENDS) + "  ratio  build s  error"
    )
    for name, build_region in REGIONS.items():
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            times, build_s, wrong = row(make_region(build_region, Path(folder)), arguments.repeats)
        library = min(us for backend, us in times.items() if backend != "tvm")
        cells = "".join(f"{times.get(backend, float('nan')):12.1f}" for backend in BACKENDS)
        print(
            f"{name:36}{cells}{library / times['tvm']:7.2f}{build_s:9.2f}{wrong:7.0e}", flush=True
        )


if __name__ == "__main__":
    main()

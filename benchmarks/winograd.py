"""Winograd convolutions against each library: `python -m benchmarks.winograd`.

Each row is one 3x3 convolution with bias and ReLU, batch 1, one thread. All kernels of a row run in turn,
so that a change of the machine's speed affects all of them; `cold` flushes the caches before each call, as
between the kernels of a model, `hot` does not. Times are medians in microseconds; GFLOP/s counts the
multiplications of the direct convolution, so Winograd's may exceed the peak of the core.
"""

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
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import Backend, BuildContext
from collage.backends.cpu.winograd import WinogradBackend
from collage.backends.registry import available_backends
from collage.frontend import Function, import_model
from collage.frontend.region import region_bytes_and_flops, region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.measure.environment import last_level_cache_bytes
from collage.runtime.arrays import aligned_copy

LIBRARIES = ("onnxruntime", "openvino")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A convolution: channels in and out, height and width of the image."""

    channels_in: int
    channels_out: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.channels_in}->{self.channels_out} {self.height}x{self.width}"


SHAPES = (
    ConvShape(64, 64, 56, 56), ConvShape(128, 128, 28, 28), ConvShape(256, 256, 14, 14), ConvShape(512, 512,
    7, 7), ConvShape(16, 16, 80, 160), ConvShape(24, 96, 48, 48), ConvShape(96, 24, 184, 184), ConvShape(32,
    32, 112, 112), ConvShape(96, 96, 16, 16), ConvShape(144, 144, 8, 8), ConvShape(64, 1, 64, 64),
    ConvShape(3, 64, 64, 64),
)  # fmt: skip
"""Shapes of ResNet-18, of text detectors and mobile networks, and odd ones."""


@dataclass(frozen=True)
class TimedKernel:
    """A kernel with its buffers, and the times of its calls, in nanoseconds."""

    name: str
    run: Callable[[], object]
    nanoseconds: list[int]

    @property
    def microseconds(self) -> float:
        return statistics.median(self.nanoseconds) / 1e3


def function_of(shape: ConvShape, folder: Path) -> Function:
    """Return the function y = relu(conv(x) + bias)."""
    random = np.random.default_rng(0)
    size = (shape.channels_out, shape.channels_in, 3, 3)
    weights = (random.standard_normal(size) / np.sqrt(9 * shape.channels_in)).astype("float32")
    bias = random.standard_normal(shape.channels_out).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x = (1, shape.channels_in, shape.height, shape.width)
    graph = helper.make_graph(
        nodes, "convolution", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


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
    regions: Sequence[R],
    function_of: Callable[[R, Path], Function],
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


def main() -> None:
    compare_regions(
        "Winograd's convolutions against the libraries'.",
        SHAPES,
        function_of,
        WinogradBackend.name,
        libraries=LIBRARIES,
    )


if __name__ == "__main__":
    main()

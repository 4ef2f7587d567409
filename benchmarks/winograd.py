"""Winograd's convolutions against each library's: `python -m benchmarks.winograd`.

Each row is one 3x3 convolution with bias and ReLU, batch 1, one thread. Every kernel of a row runs in
turn, so that a change of the machine's pace meets all of them; `cold` sweeps the caches before each
call, as between the kernels of a model, `hot` does not. Times are medians in microseconds; GFLOP/s
counts the multiplications of the direct convolution, so Winograd's may exceed the core's peak.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import Backend
from collage.backends.cpu.winograd import WinogradBackend
from collage.backends.registry import available_backends
from collage.frontend import Function, import_model
from collage.frontend.region import region_bytes_and_flops, region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel
from collage.measure.environment import last_level_cache_bytes
from collage.runtime.arrays import aligned_copy

LIBRARIES = ("onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class Shape:
    """A convolution: channels in and out, and the image's sides."""

    channels_in: int
    channels_out: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.channels_in}->{self.channels_out} {self.height}x{self.width}"


SHAPES = (
    Shape(64, 64, 56, 56), Shape(128, 128, 28, 28), Shape(256, 256, 14, 14), Shape(512, 512, 7, 7),
    Shape(16, 16, 80, 160), Shape(24, 96, 48, 48), Shape(96, 24, 184, 184), Shape(32, 32, 112, 112),
    Shape(96, 96, 16, 16), Shape(144, 144, 8, 8), Shape(64, 1, 64, 64), Shape(3, 64, 64, 64),
)  # fmt: skip
"""Those of ResNet-18, then some of text detectors, mobile networks, and odd ones."""


@dataclass(frozen=True)
class Contender:
    """A kernel with its buffers, and what its calls took."""

    name: str
    run: Callable[[], object]
    nanoseconds: list[int]

    @property
    def microseconds(self) -> float:
        return statistics.median(self.nanoseconds) / 1e3


def function_of(shape: Shape, folder: Path) -> Function:
    """The function y = relu(conv(x) + bias)."""
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
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


def contenders(function: Function, backends: list[Backend], threads: int) -> Iterator[Contender]:
    """Compile the function with every backend in every variant."""
    names, results = region_values(function, function.graph.everything)
    types = function.graph.types
    random = np.random.default_rng(1)
    for backend in backends:
        for variant in backend.variants:
            kernel = backend.compile(function, function.graph.everything, threads, variant)
            call, constants = callable_kernel(kernel, threads)
            arrays = [random.standard_normal(types[name].shape, np.float32) for name in names]
            arrays += [*constants, *(np.zeros(types[name].shape, np.float32) for name in results)]
            tensors = as_tensors([aligned_copy(array) for array in arrays])
            label = f"{backend.name} {variant}".strip()
            yield Contender(label, lambda call=call, tensors=tensors: call(*tensors), [])  # type: ignore[misc]


def measure(rivals: list[Contender], sweep: np.ndarray | None, seconds: float) -> None:
    """Call all of them in turn for about `seconds`; one call of each comes first, untimed."""
    for rival in rivals:
        rival.nanoseconds.clear()
        rival.run()
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(rivals[0].nanoseconds) < 5:
        for rival in rivals:
            if sweep is not None:
                sweep.max()
            else:
                rival.run()
            start = time.perf_counter_ns()
            rival.run()
            rival.nanoseconds.append(time.perf_counter_ns() - start)


def row(function: Function, rivals: list[Contender], own: str) -> str:
    """Each contender's time, the GFLOP/s of `own`'s best, and its speed over the best library's."""
    flops = region_bytes_and_flops(function, function.graph.everything)[1]
    ours = min(r.microseconds for r in rivals if r.name.startswith(own))
    best = min(r.microseconds for r in rivals if not r.name.startswith(own))
    times = "".join(f"{rival.microseconds:>{max(9, len(rival.name) + 2)}.0f}" for rival in rivals)
    return f"{times}{flops / ours / 1e3:10.0f}{best / ours:8.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description="Winograd's convolutions against the libraries'.")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    backends = available_backends((*LIBRARIES, WinogradBackend.name))
    sweep = np.ones(last_level_cache_bytes() * 3 // 2 // 8, np.uint64)
    for title, buffer in (("cold", sweep), ("hot", None)):
        for number, shape in enumerate(SHAPES):
            with tempfile.TemporaryDirectory() as folder:
                function = function_of(shape, Path(folder))
                rivals = list(contenders(function, backends, arguments.threads))
                if number == 0:
                    names = "".join(f"{r.name:>{max(9, len(r.name) + 2)}}" for r in rivals)
                    print(f"\n{title:<18}{names}{'GFLOP/s':>10}{'ratio':>9}")
                measure(rivals, buffer, arguments.seconds)
                print(f"{shape!s:<18}{row(function, rivals, WinogradBackend.name)}", flush=True)


if __name__ == "__main__":
    main()

"""Tuned kernels against rule-based kernels and libraries: `python -m benchmarks.tuning`.

Each row is one product of a real model with its epilogue, batch 1, one thread. First its schedules are
tried (`--trials`; records stay in `--store`, so that tuning can be interrupted and is done once). Then all
kernels of a row run in turn, so that a change of the machine's speed affects all of them, with flushed
caches as between the kernels of a model. Times are medians in microseconds; `ratio` is the time of the
fastest untuned kernel over that of the tuned one, `rules` the same for the rule-based schedule.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.region_comparison import TimedKernel, benchmark_targets, measure
from collage.backends.base import BuildContext
from collage.backends.common.tvm.tuned_schedules import write_trace
from collage.backends.cpu.tvm import TvmBackend
from collage.backends.registry import available_backends
from collage.frontend import Function, import_model
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.measure.environment import last_level_cache_bytes, this_environment
from collage.measure.measurement_request import MeasurementRequest
from collage.tuning.records import TuningRecords
from collage.tuning.tuner import Tuner

LIBRARIES = ("onednn", "onnxruntime", "openvino")
SWEEP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with bias and ReLU; for a depthwise one `groups` is the number of channels."""

    model: str
    channels: tuple[int, int]
    side: tuple[int, int]
    kernel: int
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        kind = "depthwise" if self.groups > 1 else f"{self.kernel}x{self.kernel}"
        shape = "->".join(str(channels) for channels in dict.fromkeys(self.channels))
        step = f"/{self.stride}" if self.stride > 1 else ""
        return f"{kind} k{self.kernel}{step} {shape} {self.side[0]}x{self.side[1]}"

    def nodes(self) -> list[onnx.NodeProto]:
        half = self.kernel // 2
        geometry = {"pads": [half] * 4, "strides": [self.stride] * 2, "group": self.groups}
        return [
            helper.make_node("Conv", ["x", "w", "b"], ["p"], **geometry),
            helper.make_node("Relu", ["p"], ["y"]),
        ]

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        inputs, outputs = self.channels
        weight = (outputs, inputs // self.groups, self.kernel, self.kernel)
        return (1, inputs, *self.side), weight, outputs


@dataclass(frozen=True, slots=True)
class TunedProduct:
    """A matrix product with bias and GELU's place taken by ReLU."""

    model: str
    rows: int
    reduced: int
    columns: int

    def __str__(self) -> str:
        return f"matmul {self.rows}x{self.reduced}x{self.columns}"

    def nodes(self) -> list[onnx.NodeProto]:
        return [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["s"]),
            helper.make_node("Relu", ["s"], ["y"]),
        ]

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return (self.rows, self.reduced), (self.reduced, self.columns), self.columns


Workload = Convolution | TunedProduct

WORKLOADS: tuple[Workload, ...] = (
    Convolution("efficientnet_b0", (144, 144), (56, 56), 3, stride=1, groups=144),
    Convolution("efficientnet_b0", (672, 672), (14, 14), 5, stride=1, groups=672),
    Convolution("convnext_tiny", (96, 96), (56, 56), 7, stride=1, groups=96),
    Convolution("ppocr_cls", (88, 88), (3, 96), 5, stride=1, groups=88),
    Convolution("ppocr_cls", (3, 8), (48, 192), 3, stride=2),
    Convolution("efficientnet_b0", (40, 240), (28, 28), 1),
    Convolution("efficientnet_b0", (1152, 192), (7, 7), 1),
    TunedProduct("segformer_b0", 256, 64, 64),
    TunedProduct("mobilevit_small", 64, 144, 288),
    TunedProduct("efficientnet_b0", 1, 1280, 1000),
)


def function_of(workload: Workload, folder: Path) -> Function:
    """Return the function y = relu(product(x) + bias)."""
    random = np.random.default_rng(0)
    x, weight, outputs = workload.shapes()
    values = {"w": random.standard_normal(weight) / 8, "b": random.standard_normal(outputs)}
    graph = helper.make_graph(
        workload.nodes(), "workload", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype("float32"), name) for name, array in values.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


def tune(function: Function, folder: Path, records: TuningRecords, trials: int) -> tuple[str, str]:
    """Tune up to `trials` records of the function; return the best trace and the trials per second."""
    save_reference(reference_values(function, random_inputs(function, 0)), folder / "reference")
    tuner = Tuner(
        [function], records, 1, reference_dir=folder / "reference", cache_flush_bytes=SWEEP_BYTES
    )
    work = MeasurementRequest(function.name, function.graph.everything, TvmBackend.name)
    workload = tuner.workload(work)
    missing = trials - len(records.of(workload))
    start = time.monotonic()
    try:
        if missing > 0:
            tuner.tune(work, missing)
    finally:
        tuner.close()
    best = records.best(workload)
    rate = f"{tuner.trials / (time.monotonic() - start):.1f}/s" if tuner.trials else ""
    return best.trace if best else "", rate


def targets_of(function: Function, trace: str, folder: Path) -> Iterator[TimedKernel]:
    """Compile the function tuned, by rules, and with every library in every variant."""
    if trace:
        tuned = TvmBackend()
        schedules = folder / "tuned_schedules"
        tuned.variants = (write_trace(schedules, trace),)
        (kernel,) = benchmark_targets(function, [tuned], BuildContext(1, schedules))
        yield TimedKernel("tuned", kernel.run, kernel.nanoseconds)
    (kernel,) = benchmark_targets(function, [TvmBackend()], BuildContext(1))
    yield TimedKernel("rules", kernel.run, kernel.nanoseconds)
    yield from benchmark_targets(function, available_backends(LIBRARIES), BuildContext(1))


def row(targets: Sequence[TimedKernel]) -> str:
    """Return the times of each toolchain (its best variant), and both ratios of the tuned kernel."""
    best: dict[str, float] = {}
    for target in targets:
        name = target.name.split()[0]
        best[name] = min(target.microseconds, best.get(name, float("inf")))
    columns = ("tuned", "rules", *LIBRARIES)
    times = "".join(f"{best.get(name, float('nan')):12.1f}" for name in columns)
    ours = best.get("tuned", float("nan"))
    best_untuned = min(best[name] for name in best if name != "tuned")
    return f"{times}{best_untuned / ours:9.2f}x{best['rules'] / ours:8.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description="Tuned kernels against the rest.")
    parser.add_argument("--trials", type=int, default=64, help="of each workload")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of each comparison; 0: tune only"
    )
    parser.add_argument("--store", type=Path, required=True, help="folder of the records")
    parser.add_argument("--only", help="workloads whose line has this text")
    arguments = parser.parse_args()
    records = TuningRecords(arguments.store, this_environment(1))
    sweep = np.ones(max(SWEEP_BYTES, last_level_cache_bytes() // 2) // 8, np.uint64)
    heads = "".join(f"{name:>12}" for name in ("tuned", "rules", *LIBRARIES))
    print(f"{'workload':<52}{heads}{'ratio':>10}{'rules':>9}  trials")
    for workload in WORKLOADS:
        label = f"{workload.model}: {workload}"
        if arguments.only and arguments.only not in label:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            function = function_of(workload, folder)
            trace, rate = tune(function, folder, records, arguments.trials)
            text = ""
            if arguments.seconds:
                targets = list(targets_of(function, trace, folder))
                measure(targets, sweep, arguments.seconds)
                text = row(targets)
            print(f"{label:<52}{text}  {arguments.trials} {rate}", flush=True)


if __name__ == "__main__":
    main()

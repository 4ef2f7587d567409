"""`make gpu-check`: GPU tests, whole models, and the costs of each toolchain's kernels.

    python -m benchmarks.gpu --output benchmarks/RESULTS-gpu.md [--models resnet18] [--dtypes float16,tf32]

Three parts, each written line by line, so an interrupted run leaves its results: the tests with the marker
`gpu`; whole models, compiled, checked and timed (`benchmarks.gpu_models`); and for each model, dtype and
toolchain the sum of the costs of its single-backend partition, measured cold with call overhead (sums of
kernels, not latencies). Less than nine minutes with the default of `--seconds`. The dtype `tf32` (not a
default) is float32 with TF32 allowed for every toolchain.

Exit codes: 0 all passed; 1 a test failed; 3 there is no GPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from benchmarks.gpu_models import GPU_HEADER, KINDS, TF32, CompileBudget, imported, in_dtype, row_of
from benchmarks.model_set import ROOT, skeletons
from collage.backends.base import Backend
from collage.backends.nvidia.libraries import driver_reason
from collage.backends.registry import known_backends
from collage.cost import Environment, LocalCostTable
from collage.frontend import Function
from collage.frontend.inputs import random_inputs, reference_values, save_reference
from collage.measure.conditions import MeasuringConditions, WorkerLimits
from collage.measure.environment import this_environment
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.rules import single_backend_partition
from collage.runtime.target import Target

MODELS = ("bert_base_2l", "gpt2_2l", "resnet18", "convnext_tiny")
TESTS_S = 150
KERNELS_S = 90.0
"""Seconds reserved for the last part."""
NO_GPU = 3


@dataclass(frozen=True)
class Row:
    """Sum of the costs of one toolchain's kernels for one model."""

    model: str
    backend: str
    regions: int
    nodes: int
    all_nodes: int
    seconds: float
    invalid: tuple[str, ...]

    header: ClassVar[tuple[str, ...]] = (
        "| model | backend | regions | nodes | sum, us | invalid |", "|---|---|---|---|---|---|"
    )  # fmt: skip

    @property
    def text(self) -> str:
        invalid = f"{len(self.invalid)}: {self.invalid[0]}" if self.invalid else "0"
        return (
            f"| {self.model} | {self.backend} | {self.regions} | {self.nodes} of {self.all_nodes} "
            f"| {self.seconds * 1e6:.1f} | {invalid} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500.0, help="for everything")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--dtypes", default=",".join(KINDS), help="names, separated by commas")
    parser.add_argument("--no-tests", action="store_true", help="go straight to the benchmark")
    parser.add_argument("--work", type=Path, help="folder of models, costs and bundles; kept")
    parsed = parser.parse_args(arguments)
    end = time.monotonic() + parsed.seconds
    if reason := driver_reason():
        print(f"no GPU here: {reason}. Nothing was run and nothing was written.", file=sys.stderr)
        return NO_GPU
    page = Page(parsed.output)
    environment = this_environment(1, Target.CUDA)
    backends = known_backends(None, "cuda")
    page.add(*_head(environment, backends))
    passed = True
    if not parsed.no_tests:
        passed, summary = run_tests()
        page.add("", "## Tests", "", f"`pytest -m gpu`: {summary}")
    with tempfile.TemporaryDirectory(prefix="collage-gpu-") as temporary:
        folder = parsed.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = {
            (model.name, dtype): in_dtype(model.path, dtype, folder)
            for model in skeletons(folder, parsed.models.split(","))
            for dtype in parsed.dtypes.split(",")
        }
        page.add("", "## Models", "", GPU_HEADER)
        for (name, dtype), file in models.items():
            if time.monotonic() < end - KERNELS_S:
                page.add(row_of(name, dtype, file, folder, budget=CompileBudget()))
        page.add("", "## Kernels", "", *Row.header)
        available = [backend for backend in backends if backend.availability().available]
        for (name, dtype), file in models.items():
            if time.monotonic() < end and dtype != TF32:  # the same kernels as in float32
                title, function = f"{name} {dtype}", imported(file, folder)
                rows = measure_model(
                    title, function, available, environment=environment, folder=folder, end=end
                )
                page.add(*(row.text for row in rows))
    print(parsed.output.read_text())
    return 0 if passed else 1


@dataclass
class Page:
    """The results file, rewritten with every new line."""

    file: Path
    lines: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        self.lines += lines
        self.file.write_text("\n".join(self.lines) + "\n")


def run_tests() -> tuple[bool, str]:
    """Run the tests with the marker; return whether they passed, and pytest's last line."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "tests/measure", "tests/backends"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"not done after {TESTS_S} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return done.returncode == 0, lines[-1] if lines else done.stderr[-300:]


def measure_model(
    name: str,
    function: Function,
    backends: Sequence[Backend],
    *,
    environment: Environment,
    folder: Path,
    end: float,
) -> list[Row]:
    """Measure the single-backend partition of each backend, up to the time `end`."""
    reference = folder / f"{name}-reference"
    save_reference(reference_values(function, random_inputs(function, 0)), reference)
    rows = []
    for backend in backends:
        if time.monotonic() > end:
            break
        device = Target(backend.device)
        measurer = LocalMeasurer(
            [function],
            [backend],
            LocalCostTable(folder / "costs"),
            MeasuringConditions(environment, device),
            reference_dir=reference,
            limits=WorkerLimits(
                workers=min(8, max(2, (os.cpu_count() or 2) // 2)),
                timeout_s=120.0,
                memory_bytes=16 << 30,
            ),
        )
        parts = single_backend_partition(function, backend)
        costs = measurer.measure(
            [
                MeasurementRequest(function.name, part.inside, backend.name, part.variant)
                for part in parts
            ]
        )
        measurer.close()
        nodes = sum(part.sub_graph.size for part in parts)
        valid = sum(cost.seconds for cost in costs if cost.is_valid)
        invalid = tuple(cost.reason for cost in costs if cost.is_invalid)
        rows.append(
            Row(
                name,
                backend.name,
                len(parts),
                nodes,
                all_nodes=len(function.graph),
                seconds=valid,
                invalid=invalid,
            )
        )
    return rows


def _head(environment: Environment, backends: Sequence[Backend]) -> list[str]:
    lines = ["# GPU", "", f"GPU: {environment.driver}; host: {environment.cpu}", ""]
    for backend in backends:
        availability = backend.availability()
        versions = ", ".join(
            f"{library} {version}" for library, version in availability.libraries.items()
        )
        lines.append(f"* {backend.name}: {versions or 'missing: ' + availability.reason}")
    return lines


if __name__ == "__main__":
    sys.exit(main())

"""Processes with the simulated GPU (`tests.simulated_gpu`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from collage.runtime.target import Target
from tests import simulated_gpu

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory):
    return simulated_gpu.build(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture
def on_gpu(toolkit, tmp_path):
    """Run a module in a process with the simulated GPU; return its output.

    `variables` are added to its environment; `json` returns standard output alone.
    """

    def run(*arguments, fails=False, json=False, toolkit=toolkit, **variables):
        environment = simulated_gpu.environment(toolkit, tmp_path / "log")
        done = subprocess.run(
            [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False,
            env={**environment, "XDG_CACHE_HOME": str(tmp_path / "home"), **variables},
            cwd=ROOT, timeout=550,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout if json else done.stdout + done.stderr

    return run


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Prepare and run a region of a function on a variant, like a measuring worker.

    For processes with a GPU. Returns the reason of a failure, and the error of a reduced-precision kernel.
    """
    from collage.backends.base import BuildContext
    from collage.backends.registry import class_path, known_backends
    from collage.errors import BackendError
    from collage.frontend.inputs import random_inputs, reference_values, save_reference
    from collage.measure.function_kernel_builder import FunctionKernelBuilder
    from collage.measure.measurement_request import MeasurementRequest
    from collage.measure.messages import Setup
    from collage.measure.worker import first_run, reason_of

    def run(function, nodes, backend, variant=""):
        load = "collage.measure.function_kernel_builder.load_function"
        monkeypatch.setattr(load, lambda path, name: function)
        folder = tmp_path / "reference"
        save_reference(reference_values(function, random_inputs(function, 0)), folder)
        (tested,) = (
            candidate for candidate in known_backends(None, "cuda") if candidate.name == backend
        )
        setup = Setup(
            loader="",
            functions=(("main", function.simplified),),
            backends=(class_path(tested),),
            build=BuildContext(1),
            reference_dir=folder,
            memory_bytes=4 << 30,
            cache_flush_bytes=1 << 20,
            measure_dispatch_overhead=False,
            device=Target.CUDA,
        )
        try:
            return first_run(
                FunctionKernelBuilder(setup).prepare(
                    MeasurementRequest("main", nodes, backend, variant)
                )
            )
        except (RuntimeError, BackendError) as error:
            return reason_of(error), 0.0

    return run

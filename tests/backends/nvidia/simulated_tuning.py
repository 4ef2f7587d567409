"""Tuning on the simulated GPU: `test_simulated.py` starts pytest on this file in a process with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_models import imported, in_dtype
from collage.assemble import FunctionPlan, PlannedKernel
from collage.backends.base import BuildContext
from collage.backends.common.tvm.tuned_schedules import write_trace
from collage.cost import LocalCostTable
from collage.frontend.region import region_values
from collage.graph.index_set import indices
from collage.measure.conditions import MeasuringConditions
from collage.measure.environment import this_environment
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.peaks import UNKNOWN_RATE, machine_peaks
from collage.runtime.target import Target
from collage.tuning.tuner import TUNING_WORKER, TuningLimits
from tests.backends.nvidia.plans import BACKENDS, check
from tests.backends.regions import convolutions
from tests.support.waiting import wait_until
from tests.tuning.regions import place

LOG = Path(os.environ["SIMULATED_GPU_LOG"])
CRASHING = "tests.tuning.children.crash_gpu"
PATIENT = TuningLimits(silence_s=300.0)
"""A machine under load takes long to compile for the simulated GPU."""


@pytest.fixture(autouse=True)
def _log():
    LOG.write_text("")


@pytest.fixture
def place_on_gpu(tmp_path):
    return place(tmp_path / "place", tmp_path / "store", device=Target.CUDA)


@pytest.fixture
def work(place_on_gpu):
    return place_on_gpu.work("Conv", "Relu")


def tuned(place_on_gpu, work, trials, child=TUNING_WORKER):
    """Tune; return the tuner, and the records."""
    tuner = place_on_gpu.tuner(child=child, limits=PATIENT)
    try:
        tuner.tune(work, trials)
    finally:
        tuner.close()
    return tuner, place_on_gpu.records.of(tuner.workload(work))


def test_the_best_trial_on_the_gpu_becomes_a_candidate(place_on_gpu, work, tmp_path):
    """Compiled for this GPU, checked, timed by events; it is measured beside the rules' schedules."""
    tuner, trials = tuned(place_on_gpu, work, 4)
    assert len(trials) == tuner.trials == 4
    assert all(trial.worked for trial in trials), [trial.reason for trial in trials]
    assert '"arch":"sm_90"' in tuner.toolchain.replace(" ", "")
    assert not [line for line in LOG.read_text().splitlines() if line.startswith("spoiled")]
    backend, context = BACKENDS["tvm-cuda"], BuildContext(1, tmp_path / "tuned_schedules")
    variant = write_trace(context.tuned_schedules_dir, trials[0].trace)
    measurer = LocalMeasurer(
        [place_on_gpu.function],
        [backend],
        LocalCostTable(tmp_path / "costs"),
        MeasuringConditions(place_on_gpu.environment, Target.CUDA),
        build=context,
        reference_dir=place_on_gpu.folder / "reference",
    )
    requests = [
        MeasurementRequest(work.function, work.nodes, "tvm-cuda", name)
        for name in ("", "fallback", variant)
    ]
    try:
        costs = measurer.measure(requests)
    finally:
        measurer.close()
    assert all(cost.is_valid for cost in costs), [cost.reason for cost in costs]
    assert len({measurer.key(work_item) for work_item in requests}) == 3


def test_a_tuned_kernel_is_right_within_a_cuda_graph(place_on_gpu, work, tmp_path):
    _, trials = tuned(place_on_gpu, work, 2)
    function, backend = place_on_gpu.function, BACKENDS["tvm-cuda"]
    context = BuildContext(1, tmp_path / "tuned_schedules")
    variant = write_trace(context.tuned_schedules_dir, trials[0].trace)
    parts = [(work.nodes, variant)]
    parts += [(1 << i, "") for i in indices(function.graph.everything & ~work.nodes)]
    planned = [
        PlannedKernel(
            nodes, "tvm-cuda", backend.compile(function, nodes, context, variant),
            *region_values(function, nodes),
        )
        for nodes, variant in parts
    ]  # fmt: skip
    check(FunctionPlan(function, tuple(planned)), tmp_path)
    assert "launch graph" in LOG.read_text()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_in_16_bits_are_tuned_without_tensor_cores(tmp_path, dtype):
    convolutions(tmp_path)
    function = imported(in_dtype(tmp_path / "model.onnx", dtype, tmp_path), tmp_path)
    place_on_gpu = place(tmp_path / "place", tmp_path / "store", function, device=Target.CUDA)
    _, trials = tuned(place_on_gpu, place_on_gpu.work("Conv", "Relu"), 2)
    assert trials[0].worked, [trial.reason for trial in trials]


def test_a_bad_address_is_one_failed_trial(place_on_gpu, work):
    """Every second kernel of a worker reads an invalid address; later workers go on."""
    tuner, trials = tuned(place_on_gpu, work, 4, CRASHING)
    assert tuner.trials == len(trials) == 4
    assert tuner.failed == 2
    assert [trial.worked for trial in trials] == [True, True, False, False]
    for trial in trials[2:]:
        assert "an illegal memory access was encountered (700)" in trial.reason
    assert place_on_gpu.records.ended(tuner.workload(work)) == ""


PROGRAM = """
import sys
from pathlib import Path
from collage.runtime.target import Target
from tests.tuning.regions import place
place_on_gpu = place(Path(sys.argv[1]), Path(sys.argv[2]), device=Target.CUDA)
place_on_gpu.tuner().tune(place_on_gpu.work("Conv", "Relu"), 10_000)
"""


def test_a_killed_tuner_leaves_its_records_and_another_goes_on(place_on_gpu, work, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "other"), str(place_on_gpu.store)]
    running = subprocess.Popen(command)
    workload = place_on_gpu.tuner().workload(work)
    wait_until(lambda: len(place_on_gpu.records.of(workload)) >= 3, 120, every_s=0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = {record.trace for record in place_on_gpu.records.of(workload)}
    assert len(before) >= 3
    _, trials = tuned(place_on_gpu, work, 2)
    after = {record.trace for record in trials}
    assert before < after
    assert len(after) <= len(before) + 2
    (file,) = (place_on_gpu.store / "tuning").iterdir()
    assert file.stem == this_environment(1, Target.CUDA).digest != this_environment(1).digest


def test_the_peaks_are_the_gpus(tmp_path):
    """The simulated GPU has four processors at 1 GHz, 256 bits of memory at 1 GHz."""
    peaks = machine_peaks(this_environment(1, Target.CUDA), tmp_path)
    assert (peaks.flops_per_s, peaks.bytes_per_s) == (2 * 4 * 128 * 1e9, 64e9)
    assert peaks.flops_per_s < UNKNOWN_RATE

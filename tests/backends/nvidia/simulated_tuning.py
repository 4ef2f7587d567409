"""Tuning on the simulated GPU: `test_simulated.py` starts pytest on this file in a process that sees it."""

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_models import imported, in_dtype
from collage.assemble import FunctionPlan, PlannedKernel
from collage.backends.common.tvm.tuned_schedules import write_recipe
from collage.cost import CostTable
from collage.frontend.region import region_values
from collage.graph.index_set import indices
from collage.measure.environment import this_environment
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import Work
from collage.measure.peaks import UNTOLD, machine_peaks
from collage.tuning.tuner import CHILD, Limits
from tests.backends.nvidia.plans import BACKENDS, check
from tests.backends.regions import convolutions
from tests.tuning.regions import place

LOG = Path(os.environ["SIMULATED_GPU_LOG"])
CRASHING = "tests.tuning.children.crash_gpu"
PATIENT = Limits(silence_s=300.0)
"""A machine under load takes long to compile for the simulated GPU."""


@pytest.fixture(autouse=True)
def _log():
    LOG.write_text("")


@pytest.fixture
def here(tmp_path):
    return place(tmp_path / "place", tmp_path / "store", device="cuda")


@pytest.fixture
def work(here):
    return here.work("Conv", "Relu")


def tuned(here, work, trials, child=CHILD):
    """Tune; return the tuner, and the records."""
    tuner = here.tuner(child=child, limits=PATIENT)
    try:
        tuner.tune(work, trials)
    finally:
        tuner.close()
    return tuner, here.records.of(tuner.workload(work))


def test_trials_run_on_the_gpu_and_the_best_is_a_candidate_of_its_own(here, work, tmp_path):
    """Compiled for this GPU, checked, timed by events; it is measured beside the rules' schedules."""
    tuner, found = tuned(here, work, 4)
    assert len(found) == tuner.trials == 4
    assert all(one.worked for one in found), [one.reason for one in found]
    assert '"arch":"sm_90"' in tuner.toolchain.replace(" ", "")
    assert not [line for line in LOG.read_text().splitlines() if line.startswith("spoiled")]
    backend = copy.copy(BACKENDS["tvm-cuda"])
    backend.recipes = tmp_path / "recipes"
    variant = write_recipe(backend.recipes, found[0].trace)
    measurer = LocalMeasurer(
        [here.function], [backend], CostTable(tmp_path / "costs"), here.environment,
        reference_dir=here.folder / "reference", device="cuda",
    )  # fmt: skip
    works = [Work(work.function, work.nodes, "tvm-cuda", one) for one in ("", "fallback", variant)]
    try:
        costs = measurer.measure(works)
    finally:
        measurer.close()
    assert all(one.is_valid for one in costs), [one.reason for one in costs]
    assert len({measurer.key(one) for one in works}) == 3


def test_a_tuned_kernel_computes_the_models_numbers_in_a_cuda_graph(here, work, tmp_path):
    _, found = tuned(here, work, 2)
    function, backend = here.function, copy.copy(BACKENDS["tvm-cuda"])
    backend.recipes = tmp_path / "recipes"
    variant = write_recipe(backend.recipes, found[0].trace)
    parts = [(work.nodes, variant)]
    parts += [(1 << i, "") for i in indices(function.graph.everything & ~work.nodes)]
    planned = [
        PlannedKernel(
            nodes, "tvm-cuda", backend.compile(function, nodes, 1, one),
            *region_values(function, nodes),
        )
        for nodes, one in parts
    ]  # fmt: skip
    check(FunctionPlan(function, tuple(planned)), tmp_path)
    assert "launch graph" in LOG.read_text()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_in_16_bits_are_tuned_without_tensor_cores(tmp_path, dtype):
    convolutions(tmp_path)
    function = imported(in_dtype(tmp_path / "model.onnx", dtype, tmp_path), tmp_path)
    here = place(tmp_path / "place", tmp_path / "store", function, device="cuda")
    _, found = tuned(here, here.work("Conv", "Relu"), 2)
    assert found[0].worked, [one.reason for one in found]


def test_a_bad_address_is_one_failed_trial(here, work):
    """Every second kernel of a child reads an address that is none; children after it go on."""
    tuner, found = tuned(here, work, 4, CRASHING)
    assert tuner.trials == len(found) == 4
    assert tuner.failed == 2
    assert [one.worked for one in found] == [True, True, False, False]
    for one in found[2:]:
        assert "an illegal memory access was encountered (700)" in one.reason
    assert here.records.ended(tuner.workload(work)) == ""


PROGRAM = """
import sys
from pathlib import Path
from tests.tuning.regions import place
here = place(Path(sys.argv[1]), Path(sys.argv[2]), device="cuda")
here.tuner().tune(here.work("Conv", "Relu"), 10_000)
"""


def test_a_killed_tuner_leaves_its_records_and_another_goes_on(here, work, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "other"), str(here.store)]
    running = subprocess.Popen(command)
    workload, until = here.tuner().workload(work), time.monotonic() + 120
    while len(here.records.of(workload)) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = {one.trace for one in here.records.of(workload)}
    assert len(before) >= 3
    _, found = tuned(here, work, 2)
    after = {one.trace for one in found}
    assert before < after
    assert len(after) <= len(before) + 2
    (file,) = (here.store / "tuning").iterdir()
    assert file.stem == this_environment(1, "cuda").digest != this_environment(1).digest


def test_the_peaks_are_the_gpus(tmp_path):
    """What the simulated one tells: four processors at 1 GHz, 256 bits of memory at 1 GHz."""
    found = machine_peaks(this_environment(1, "cuda"), tmp_path)
    assert (found.flops_per_s, found.bytes_per_s) == (2 * 4 * 128 * 1e9, 64e9)
    assert found.flops_per_s < UNTOLD

"""A record becomes the same kernel every time, and that kernel computes what the region does."""

import json

import numpy as np
import onnxruntime
import pytest

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.common.tvm.tuned_schedules import trace_digest, write_trace
from collage.backends.cpu.tvm import TvmBackend
from collage.cost import LocalCostTable
from collage.errors import BackendError
from collage.frontend.inputs import random_inputs
from collage.frontend.region import region_values
from collage.graph.index_set import indices
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from tests.tuning.regions import ENVIRONMENT, place


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    workspace = place(folder / "place", folder / "store")
    tuner = workspace.tuner()
    try:
        for ops in (("Conv", "Relu"), ("Conv", "Add")):
            tuner.tune(workspace.work(*ops), 4)
    finally:
        tuner.close()
    return workspace


@pytest.fixture
def backend(tmp_path):
    backend = TvmBackend()
    backend.tuned_schedules_dir = tmp_path / "tuned_schedules"
    return backend


def variant_of(place, work, backend):
    best = place.records.best(place.tuner().workload(work))
    return write_trace(backend.tuned_schedules_dir, best.trace)


def test_a_record_always_becomes_the_same_kernel(tuned, backend):
    work = tuned.work("Conv", "Relu")
    variant = variant_of(tuned, work, backend)
    texts = {
        backend.compile(tuned.function, work.nodes, 1, variant).module.script() for _ in range(3)
    }
    assert len(texts) == 1
    assert texts != {backend.compile(tuned.function, work.nodes, 1).module.script()}


def test_tuned_kernels_compute_the_right_numbers_in_an_executable(tuned, backend, tmp_path):
    import tvm
    from tvm import relax

    function, planned, covered = tuned.function, [], 0
    for ops in (("Conv", "Relu"), ("Conv", "Add")):
        work = tuned.work(*ops)
        kernel = backend.compile(function, work.nodes, 1, variant_of(tuned, work, backend))
        planned.append(
            PlannedKernel(work.nodes, "tvm", kernel, *region_values(function, work.nodes))
        )
        covered |= work.nodes
    for index in indices(function.graph.everything & ~covered):
        kernel = backend.compile(function, 1 << index, 1)
        planned.append(
            PlannedKernel(1 << index, "tvm", kernel, *region_values(function, 1 << index))
        )
    assemble([FunctionPlan(function, tuple(planned))], 1, tmp_path / "model.so")
    inputs = random_inputs(function, 3)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, inputs.values()))
    session = onnxruntime.InferenceSession(str(function.simplified))
    (expected,) = session.run(None, inputs)
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_the_cost_key_names_the_tuned_variant(tuned, backend, tmp_path):
    work = tuned.work("Conv", "Relu")
    variant = variant_of(tuned, work, backend)
    measurer = LocalMeasurer(
        [tuned.function],
        [backend],
        LocalCostTable(tmp_path / "costs"),
        ENVIRONMENT,
        reference_dir=tuned.folder / "reference",
    )
    requests = [work, MeasurementRequest(work.function, work.nodes, work.backend, variant)]
    try:
        plain, special = measurer.measure(requests)
        missing = measurer.measure(
            [MeasurementRequest(work.function, work.nodes, "tvm", "tuned-" + "0" * 32)]
        )
    finally:
        measurer.close()
    assert plain.is_valid
    assert special.is_valid
    assert missing[0].is_invalid
    assert "is not here" in missing[0].reason or "cannot be read" in missing[0].reason
    assert variant.endswith(trace_digest((backend.tuned_schedules_dir / variant[6:]).read_text()))
    assert len({measurer.key(work) for work in requests}) == 2


def test_a_changed_recipe_is_refused(tuned, backend):
    work = tuned.work("Conv", "Relu")
    variant = variant_of(tuned, work, backend)
    file = backend.tuned_schedules_dir / variant.removeprefix("tuned-")
    file.write_text(file.read_text().replace("64", "32", 1) + " ")
    with pytest.raises(BackendError, match="was changed"):
        backend.compile(tuned.function, work.nodes, 1, variant)


@pytest.mark.parametrize("trace", ["[]", "{", json.dumps([[["Nonsense", [], [], []]], []])])
def test_a_trace_that_does_not_fit_is_refused(tuned, backend, trace):
    work = tuned.work("Conv", "Relu")
    variant = write_trace(backend.tuned_schedules_dir, trace)
    with pytest.raises(BackendError, match="does not fit"):
        backend.compile(tuned.function, work.nodes, 1, variant)


def test_a_trace_of_another_structure_is_refused(tuned, backend):
    variant = variant_of(tuned, tuned.work("Conv", "Add"), backend)
    softmax = tuned.function.graph.everything & ~(tuned.function.graph.everything >> 1)
    with pytest.raises(BackendError):
        backend.compile(tuned.function, softmax, 1, variant)

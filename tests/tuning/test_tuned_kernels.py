"""A record becomes the same kernel every time, and that kernel computes what the region does."""

import json

import numpy as np
import onnxruntime
import pytest

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext
from collage.backends.common.tvm.tuned_schedules import trace_digest, write_trace
from collage.backends.cpu.tvm import TvmBackend
from collage.cost import LocalCostTable
from collage.errors import BackendError
from collage.frontend.inputs import random_inputs
from collage.frontend.region import region_values
from collage.graph.index_set import indices
from collage.measure.conditions import MeasuringConditions
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from tests.tuning.regions import ENVIRONMENT, place

BACKEND = TvmBackend()


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
def context(tmp_path):
    return BuildContext(1, tmp_path / "tuned_schedules")


def variant_of(place, work, context):
    best = place.records.best(place.tuner().workload(work))
    return write_trace(context.tuned_schedules_dir, best.trace)


def test_a_record_always_becomes_the_same_kernel(tuned, context):
    work = tuned.work("Conv", "Relu")
    variant = variant_of(tuned, work, context)
    texts = {
        BACKEND.compile(tuned.function, work.nodes, context, variant).module.script()
        for _ in range(3)
    }
    assert len(texts) == 1
    assert texts != {BACKEND.compile(tuned.function, work.nodes, context).module.script()}


def test_tuned_kernels_compute_the_right_numbers_in_an_executable(tuned, context, tmp_path):
    import tvm
    from tvm import relax

    function, planned, covered = tuned.function, [], 0
    for ops in (("Conv", "Relu"), ("Conv", "Add")):
        work = tuned.work(*ops)
        kernel = BACKEND.compile(function, work.nodes, context, variant_of(tuned, work, context))
        planned.append(
            PlannedKernel(work.nodes, "tvm", kernel, *region_values(function, work.nodes))
        )
        covered |= work.nodes
    for index in indices(function.graph.everything & ~covered):
        kernel = BACKEND.compile(function, 1 << index, context)
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


def test_the_cost_key_names_the_tuned_variant(tuned, context, tmp_path):
    work = tuned.work("Conv", "Relu")
    variant = variant_of(tuned, work, context)
    measurer = LocalMeasurer(
        [tuned.function],
        [BACKEND],
        LocalCostTable(tmp_path / "costs"),
        MeasuringConditions(ENVIRONMENT),
        build=context,
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
    assert variant.endswith(trace_digest((context.tuned_schedules_dir / variant[6:]).read_text()))
    assert len({measurer.key(work) for work in requests}) == 2


def test_a_changed_recipe_is_refused(tuned, context):
    work = tuned.work("Conv", "Relu")
    variant = variant_of(tuned, work, context)
    file = context.tuned_schedules_dir / variant.removeprefix("tuned-")
    file.write_text(file.read_text().replace("64", "32", 1) + " ")
    with pytest.raises(BackendError, match="was changed"):
        BACKEND.compile(tuned.function, work.nodes, context, variant)


@pytest.mark.parametrize("trace", ["[]", "{", json.dumps([[["Nonsense", [], [], []]], []])])
def test_a_trace_that_does_not_fit_is_refused(tuned, context, trace):
    work = tuned.work("Conv", "Relu")
    variant = write_trace(context.tuned_schedules_dir, trace)
    with pytest.raises(BackendError, match="does not fit"):
        BACKEND.compile(tuned.function, work.nodes, context, variant)


def test_a_trace_of_another_structure_is_refused(tuned, context):
    variant = variant_of(tuned, tuned.work("Conv", "Add"), context)
    softmax = tuned.function.graph.everything & ~(tuned.function.graph.everything >> 1)
    with pytest.raises(BackendError):
        BACKEND.compile(tuned.function, softmax, context, variant)

"""Bodies of control flow: partitioned before their caller, each structure once."""

import json
from collections import Counter
from contextlib import contextmanager, suppress

import numpy as np
import onnxruntime
import pytest

import collage
from collage.backends.cpu.control_flow import CONTROL_FLOW
from collage.backends.cpu.control_flow.body_plans import read_plans
from collage.entries import find_entries
from collage.errors import ClusterError, SearchError, UnprovenError
from collage.frontend.region import region_digest
from collage.options import Options
from collage.pipeline.bodies import BodyPartitioner, body_path, search_bodies
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.compile_service import LocalCompileService, search_model_function
from collage.pipeline.request import RequestOptions, submit
from collage.pipeline.search_stage import (
    enumerated_function,
    imported,
    local_measurer,
    sampled,
)
from collage.report.progress import SilentProgress
from collage.runtime.manifest import read_manifest
from collage.store import open_store
from tests.support import control_flow_models as models
from tests.support.control_flow_models import write_model
from tests.support.costs import cost_lines


@contextmanager
def partitioned(text, folder, *backends):
    """Partition the bodies of a model, with TVM unless backends are named, with little measuring."""
    path = write_model(text, folder / "model.onnx")
    options = Options(
        backends=backends or ("tvm",), threads=1, cache_dir=folder / "store", measure_budget_s=1
    )
    with open_compile_context(options) as context:
        model = imported(path, context)
        partitioner = BodyPartitioner(model, context)
        samples = sampled(model, model.functions[0], context)
        partitioner.partition(model.functions[0], samples.reference_dir)
        yield partitioner, samples


def test_the_driver_of_a_body_is_a_measured_candidate(tmp_path):
    with partitioned(models.LOOP, tmp_path) as (partitioner, samples):
        context, function = partitioner.context, partitioner.model.functions[0]
        work = enumerated_function(function, context).work.values()
        request = next(request for request in work if request.backend == CONTROL_FLOW)
        measurer = local_measurer(function, samples.reference_dir, context)
        (cost,) = measurer.measure([request])
        measurer.close()
        assert cost.is_valid, cost.reason
        assert context.notes == ["Loop_1 (Loop) has a candidate with its body on tvm"]


def test_bodies_of_one_structure_are_searched_once(tmp_path):
    with partitioned(models.TWO_LOOPS, tmp_path) as (partitioner, _):
        function = partitioner.model.functions[0]
        assert len(function.bodies) == 2
        assert len(partitioner.context.body_searches) == 1
        folder = partitioner.context.bodies_dir
        plans = [read_plans(folder, "main", body.node) for body in function.bodies]
        assert plans[0].plans[0].digest == plans[1].plans[0].digest
        assert plans[0].plans[0].executables != plans[1].plans[0].executables


def test_a_loop_is_apart_from_operators_that_read_its_rows(tmp_path):
    with partitioned(models.READ_ROWS, tmp_path, "tvm", "onnxruntime") as (partitioner, samples):
        context, function = partitioner.context, partitioner.model.functions[0]
        work = enumerated_function(function, context).work.values()
        regions = {(request.nodes, request.backend): request for request in work}
        assert regions.keys() == {
            (0b11, "onnxruntime"),
            (0b10, "onnxruntime"),
            (0b01, CONTROL_FLOW),
        }
        parts = [regions[0b10, "onnxruntime"], regions[0b01, CONTROL_FLOW]]
        measurer = local_measurer(function, samples.reference_dir, context)
        costs = measurer.measure(parts)
        measurer.close()
        assert [cost.reason for cost in costs] == ["", ""]


def test_a_body_without_measurements_leaves_its_node_whole(tmp_path):
    path = write_model(models.NESTED, tmp_path / "model.onnx")
    backends = ("tvm", "onnxruntime")
    options = Options(backends=backends, threads=1, cache_dir=tmp_path / "store")
    opened = []

    def open_measurer(body):
        opened.append(body.name)
        raise ClusterError("pod 17 is gone\nits last lines")

    with open_compile_context(options) as context:
        (function,) = imported(path, context).functions
        notes = search_bodies(function, context, open_measurer)
    (outer,) = function.bodies
    (inner,) = outer.function.bodies
    assert opened == [inner.function.name, outer.function.name], "nested bodies come first"
    assert notes
    assert all(note.endswith("its body has no plan of its own: pod # is gone") for note in notes)
    assert body_path(function, inner.function.name) == (outer, inner)
    assert body_path(function, "absent") is None


def test_only_a_finish_may_cover_a_loop(tmp_path):
    entries = find_entries(write_model(models.LOOP, tmp_path / "model.onnx"))
    options = Options(backends=("tvm",), threads=1, cache_dir=tmp_path / "store")

    def open_measurer(*_):
        return None  # nothing is measured

    with open_compile_context(options) as context:
        searched = search_model_function(
            entries, "main", context, open_measurer, assembles_bodies=False
        )
        assert (searched.function, searched.plans) == ("main", ())
        with pytest.raises(SearchError, match="no backend takes it"):
            search_model_function(entries, "main", context, open_measurer)


def test_a_body_knows_that_its_values_are_the_users(tmp_path):
    path = write_model(models.NESTED, tmp_path / "model.onnx")
    digests = []
    for trips in (2, 3, None):
        inputs = {} if trips is None else {"trips": np.array(trips)}
        options = Options(backends=("tvm",), threads=1, cache_dir=tmp_path / "store", inputs=inputs)
        with open_compile_context(options) as context:
            (function,) = imported(path, context).functions
            body = function.bodies[0].function
            assert body.has_samples == bool(inputs)
            digests.append(region_digest(body, 1 << body.bodies[0].node))
    assert len(set(digests)) == 3, "a loop's cost depends on values"


@pytest.mark.full
def test_a_finish_finds_the_searches_of_loops(tmp_path):
    """Two entries with a loop each: the plans of one are no part of the other's identity.

    Their sizes differ: the finish would find more plans of the first with costs of the second.
    """
    for name, text in (("first", models.LOOP), ("second", models.SCAN.replace("8", "16"))):
        write_model(text, tmp_path / f"{name}.onnx")
    store = open_store(str(tmp_path / "shared"))
    options = RequestOptions(
        backends=("tvm",), measure_budget_s=5, refine_s=0, verify_s=0.1, tune_s=0, fallback=False
    )
    files = {name: tmp_path / f"{name}.onnx" for name in ("first", "second")}
    request = submit(store, files, options=options)
    service = LocalCompileService(store.url, tmp_path / "here")
    for function in service.functions(request):
        service.search(request, function, SilentProgress())
    before = times_measured(store)
    elsewhere = LocalCompileService(store.url, tmp_path / "elsewhere")
    with suppress(UnprovenError):  # a busy machine may leave the proof open
        elsewhere.finish(request, SilentProgress())
    assert times_measured(store) == before
    assert set(before.values()) == {1}


def times_measured(store):
    """Return how often each cost is in the store."""
    data = [store.read(entry.key).data for entry in store.entries("costs/")]
    return Counter(line.key for text in data for line in cost_lines(text))


@pytest.mark.full
def test_a_bundle_drives_its_loops(tmp_path):
    path = write_model(models.NESTED, tmp_path / "model.onnx")
    options = Options(
        backends=("tvm",),
        threads=1,
        cache_dir=tmp_path / "store",
        verify_s=0.1,
        measure_budget_s=2,
        refine_s=0,
        fallback=False,
        allow_slower=True,
    )
    summary = collage.compile(path, options, output=tmp_path / "bundle")
    assert CONTROL_FLOW in {region.backend for region in summary.plan}
    manifest = read_manifest(tmp_path / "bundle")
    document = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert set(document["provenance"]["toolchains"]) == {"tvm"}
    assert not manifest.libraries
    bundle = collage.load(tmp_path / "bundle")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).standard_normal((2, 8)).astype(np.float32)
    for count in (0, 1, 4):
        feeds = {"x": x, "trips": np.array(count)}
        np.testing.assert_allclose(
            bundle.run(feeds)["y"], session.run(["y"], feeds)[0], rtol=1e-4, atol=1e-5
        )

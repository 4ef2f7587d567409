"""Reduced-precision kernels: candidates, errors, and int8 in quantised models."""

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu.onednn import OneDnnBackend
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.backends.cpu.openvino import OpenVinoBackend
from collage.frontend import import_model
from collage.frontend.region import (
    probability_outputs,
    region_onnx,
    region_values,
)
from collage.graph.index_set import index_set, indices
from collage.graph.quantisation import computes_int8
from collage.rules.candidates import find_candidates
from collage.rules.qdq_groups import find_qdq_groups
from collage.runtime.cpu import bf16_reason
from collage.runtime.precision import output_error
from tests.backends import regions
from tests.backends.quantised import quantised_model
from tests.runtime.executables import call_kernel

needs_bf16 = pytest.mark.skipif(bool(bf16_reason()), reason=bf16_reason() or "-")
REDUCING = [OpenVinoBackend, OneDnnBackend]


@needs_bf16
@pytest.mark.parametrize("make", REDUCING)
@pytest.mark.parametrize("nodes", [0b1, 0b11, 0b100, 0b1100, 0b11111])
def test_a_reduced_kernel_is_near_and_not_the_same(make, nodes, tmp_path):
    function = regions.convolutions(tmp_path)
    computed, expected = outputs_of(make(), function, nodes, "bf16")
    exact, _ = outputs_of(make(), function, nodes, "")
    errors = [output_error(a, b) for a, b in zip(expected, computed, strict=True)]
    assert 1e-5 < max(errors) < 2e-2
    assert max(output_error(a, b) for a, b in zip(expected, exact, strict=True)) < 1e-5


def outputs_of(backend, function, nodes, variant):
    kernel = backend.compile(function, nodes, BuildContext(1), variant=variant)
    inputs, outputs = region_values(function, nodes)
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(function.graph.types[n].shape).astype("f4") for n in inputs}
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    arrays = [np.full(function.graph.types[n].shape, np.nan, np.float32) for n in outputs]
    call_kernel(kernel.kind, kernel.blob, list(feeds.values()), arrays)
    return arrays, session.run(list(outputs), feeds)


@needs_bf16
@pytest.mark.parametrize("make", REDUCING)
def test_reduced_candidates_hold_a_product_and_need_permission(make, tmp_path):
    function, backend = regions.convolutions(tmp_path), make()
    products = index_set(n.index for n in function.graph.nodes if n.op == "Conv")
    exact = find_candidates(function, [backend])
    assert not any(candidate.variant in backend.reduced for candidate in exact)
    allowed = find_candidates(function, [backend], may_reduce=True)
    reduced = [candidate for candidate in allowed if candidate.variant in backend.reduced]
    assert {1 << index for index in indices(products)} <= {
        candidate.inside for candidate in reduced
    }
    assert all(candidate.inside & products for candidate in reduced)
    assert [candidate.key for candidate in allowed if candidate not in reduced] == [
        candidate.key for candidate in exact
    ]


@pytest.mark.parametrize("make", REDUCING)
def test_a_processor_without_bf16_is_offered_none(make, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2 avx512f\n")
    monkeypatch.setattr("collage.runtime.cpu.CPUINFO", tmp_path / "cpuinfo")
    function, backend = regions.convolutions(tmp_path), make()
    assert "neither amx_bf16 nor avx512_bf16" in backend.reduced_reason()
    allowed = find_candidates(function, [backend], may_reduce=True)
    assert [c.key for c in allowed] == [c.key for c in find_candidates(function, [backend])]


def test_backends_without_reduced_variants_need_no_reason(monkeypatch, tmp_path):
    monkeypatch.setattr("collage.runtime.cpu.CPUINFO", tmp_path / "missing")
    assert OnnxRuntimeBackend().reduced_reason() == ""


def test_an_output_of_softmax_is_a_probability(tmp_path):
    assert probability_outputs(regions.convolutions(tmp_path)) == {"y"}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised")
    return import_model(quantised_model(folder), work_dir=folder / "work").functions[0]


def products_of(function):
    return [
        island
        for island in find_qdq_groups(function.graph)
        if computes_int8(function.graph, island)
    ]


def test_every_product_of_a_quantised_model_is_in_an_island(quantised):
    products = index_set(n.index for n in quantised.graph.nodes if n.op in ("Conv", "MatMul"))
    product_islands = products_of(quantised)
    assert products.bit_count() == 3
    assert sum(island & products for island in product_islands) == products
    for backend in (OnnxRuntimeBackend(), OpenVinoBackend()):
        offered = {candidate.inside for candidate in find_candidates(quantised, [backend])}
        assert set(product_islands) <= offered


def test_onnxruntime_runs_islands_in_int8(quantised, tmp_path):
    for island in products_of(quantised):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        model = region_onnx(quantised, island).SerializeToString()
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        ops = {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node}
        assert ops & {"QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat"}, ops
        assert not ops & {"Conv", "MatMul", "FusedConv"}, ops


def test_openvino_runs_islands_in_int8(quantised):
    core = openvino.Core()
    for island in products_of(quantised):
        model = core.read_model(region_onnx(quantised, island).SerializeToString())
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
        kinds = {
            str(fact["layerType"].astype(str)): str(fact["runtimePrecision"].astype(str))
            for fact in facts
        }
        products = {
            k: v for k, v in kinds.items() if k in ("Convolution", "FullyConnected", "MatMul")
        }
        assert products, kinds
        assert all(precision in ("i8", "u8") for precision in products.values()), kinds

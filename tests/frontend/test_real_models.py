"""Real models: no operator is lost, every region is right, and a worker loads them cheaply."""

import random
import subprocess
import sys
import time

import numpy as np
import onnxruntime
import pytest
from tvm import relax

from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.load_function import load_function
from collage.frontend.region import region_digest, region_onnx, region_relax, region_values
from collage.graph.op_pattern import OpPatternKind
from tests.support.real_models import DRAWN, TRAINED

pytestmark = pytest.mark.full

NODES = {
    "bert_base_2l": 72, "convnext_tiny": 286, "efficientnet_b0": 238, "gpt2_2l": 79,
    "llama_tiny": 248, "mobilevit_small": 393, "resnet18": 47, "segformer_b0": 368,
    "PP-OCRv6_det_small": 242, "PP-OCRv6_rec_small": 280, "ch_ppocr_mobile_v2.0_cls_infer": 180,
    "ch_PP-OCRv4_rec_infer": 393, "ch_PP-OCRv4_det_infer": 328,
}  # fmt: skip


@pytest.mark.parametrize("name", [*DRAWN, *TRAINED])
def test_import(name, real_model):
    imported = real_model(name)
    function = imported.functions[0]
    graph = function.graph
    assert imported.notes == ()
    assert len(graph) == NODES[name]
    assert all(value in graph.types for node in graph.nodes for value in node.outputs)
    assert [
        n.op for n, form in zip(graph.nodes, function.relax_nodes, strict=True) if not form
    ] == []
    heavy = [node.kind for node in graph.nodes if node.op in ("Conv", "MatMul", "Gemm")]
    assert set(heavy) == {OpPatternKind.OUT_ELEMWISE_FUSABLE}


@pytest.mark.parametrize("name", [*DRAWN, *TRAINED])
def test_random_regions_run_alone(name, real_model):
    function = real_model(name).functions[0]
    values = reference_values(function, random_inputs(function, 0))
    draw = random.Random(name)
    for _ in range(12):
        nodes = interval(draw, len(function.graph))
        inputs, outputs = region_values(function, nodes)
        region = region_onnx(function, nodes).SerializeToString()
        session = onnxruntime.InferenceSession(region, providers=["CPUExecutionProvider"])
        results = session.run(
            list(outputs), {input_name: values[input_name] for input_name in inputs}
        )
        for output, result in zip(outputs, results, strict=True):
            scale = np.abs(values[output]).max()
            np.testing.assert_allclose(result, values[output], rtol=1e-3, atol=1e-3 * scale)
        assert relax.analysis.check_well_formed(region_relax(function, nodes))


def interval(draw: random.Random, size: int) -> int:
    """Draw an interval of the topological order: such a set is convex."""
    first = draw.randrange(size)
    count = draw.randint(1, 20)
    return ((1 << count) - 1 << first) & ((1 << size) - 1)


@pytest.mark.parametrize("name", ["resnet18", "bert_base_2l", "ch_PP-OCRv4_rec_infer"])
def test_a_loaded_function_is_the_imported_one(name, real_model):
    function = real_model(name).functions[0]
    loaded = load_function(function.simplified, "main")
    all_nodes = (1 << len(function.graph)) - 1
    assert loaded.graph == function.graph
    assert loaded.opsets == function.opsets
    assert region_digest(loaded, all_nodes) == region_digest(function, all_nodes)


def test_a_worker_loads_without_tvm(real_model):
    function = real_model("mobilevit_small").functions[0]
    code = (
        "import sys, pathlib; from collage.frontend.load_function import load_function;"
        f"load_function(pathlib.Path({str(function.simplified)!r}), 'main');"
        "assert 'tvm' not in sys.modules"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.monotonic() - start < 5


def test_equal_layers_have_one_digest(real_model):
    """Transformer blocks of one width are measured once, not once each."""
    function = real_model("llama_tiny").functions[0]
    digests = {region_digest(function, 1 << n) for n in range(len(function.graph))}
    assert len(digests) < len(function.graph) / 4


@pytest.mark.parametrize("name", [*DRAWN, *TRAINED])
def test_folding_changes_no_result(name, real_model):
    imported = real_model(name)
    function = imported.functions[0]
    inputs = random_inputs(function, 0)
    values = reference_values(function, inputs)
    original = onnxruntime.InferenceSession(imported.path, providers=["CPUExecutionProvider"])
    for output, expected in zip(function.graph.outputs, original.run(None, inputs), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(values[output], expected, rtol=1e-3, atol=1e-3 * scale)

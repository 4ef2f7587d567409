"""One bundle answers every shape of its model: compiled, padded, or by the original model."""

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

import collage
from collage.cli import main
from collage.entries import ModelEntry
from collage.errors import InputError, OptionError
from collage.frontend import Model
from collage.frontend.original_interface import read_interface
from collage.options import Options
from collage.pipeline import other_shapes
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.other_shapes import answer_other_shapes, check_pads
from collage.runtime.fallback import FRAMEWORKS
from collage.runtime.manifest import read_manifest
from collage.verify.interleaved_benchmark import InterleavedBenchmark, latency_of
from tests.frontend.build import floats, model, save
from tests.support import original_models
from tests.support.models import small_model

TOKENS, WIDTH = 50, 16
ROUNDS = 12


def token_model(file, mixing=False):
    """Logits of each id; with `mixing`, every position sees the mean of all, so padding is no good."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((TOKENS, WIDTH)), "w": rng.standard_normal((WIDTH, TOKENS))
    }  # fmt: skip
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"])]
    if mixing:
        nodes += [
            helper.make_node("ReduceMean", ["e"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("Add", ["e", "mean"], ["h"]),
        ]
    nodes += [
        helper.make_node("Relu", ["h" if mixing else "e"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["logits"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", TOKENS])
    initializers = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "tokens", [ids], [logits], initializers)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), file)
    return file


def compiled(file, output, **options):
    """Compile with a gate that takes the first plan, as speed is not the subject."""
    defaults = {
        "backends": ("onnxruntime",), "threads": 1, "measure_budget_s": 1.0, "refine_s": 0.0,
        "tune_s": 0.0, "verify_s": 0.05, "end_to_end_plans": 1, "cache_dir": output.parent / "cache",
    }  # fmt: skip

    def compare(self, names, seconds_each, on_round=None):
        return {name: latency_of([2.0 if name in FRAMEWORKS else 1.0] * ROUNDS) for name in names}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterleavedBenchmark, "compare", compare)
        return collage.compile(file, output=output, options=Options(**(defaults | options)))


SETS = ({"ids": (1, 8)}, {"ids": (2, 16)})


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    file = token_model(folder / "tokens.onnx")
    summary = compiled(file, folder / "bundle", shapes=SETS, pad=("ids:1",))
    return file, folder / "bundle", summary


def test_random_shapes_give_the_originals_numbers(tokens):
    file, folder, _ = tokens
    bundle, original = collage.load(folder), onnxruntime.InferenceSession(file)
    rng = np.random.default_rng(1)
    for _ in range(100):
        ids = rng.integers(0, TOKENS, (rng.integers(1, 5), rng.integers(1, 24)))
        (expected,) = original.run(None, {"ids": ids})
        logits = bundle.run({"ids": ids})["logits"]
        np.testing.assert_allclose(logits, expected, 1e-4, 1e-4)
    counts = bundle.dispatch_counts()
    assert sum(counts.padded.values()) > 0
    assert counts.fallback > 0
    total = sum(counts.functions.values()) + sum(counts.padded.values()) + counts.fallback
    assert total == 100


def test_the_fallback_opens_at_its_first_call(tokens):
    bundle = collage.load(tokens[1])
    original = bundle._originals["main"]
    bundle.run({"ids": np.ones((1, 8), np.int64)})
    assert not original.is_open
    bundle.run({"ids": np.ones((3, 8), np.int64)})
    assert original.is_open
    assert collage.load(tokens[1], warm=True)._originals["main"].is_open


def test_the_summary_tells_ways_and_footprint(tokens):
    shapes = tokens[2].other_shapes
    assert shapes.fallbacks == {"main": "onnxruntime"}
    assert shapes.padding == ("ids:1",)
    assert shapes.footprint.rss_bytes > shapes.footprint.size_bytes > 0
    assert shapes.footprint.onnxruntime_rss_bytes > 0
    assert shapes.footprint.load_s > 0


@pytest.mark.full
def test_exact_only_leaves_the_original_out(tmp_path):
    file = token_model(tmp_path / "tokens.onnx")
    summary = compiled(file, tmp_path / "bundle", shapes=SETS[:1], exact_only=True)
    assert not summary.other_shapes.fallbacks
    bundle = collage.load(tmp_path / "bundle")
    assert not bundle.manifest.fallbacks
    with pytest.raises(InputError, match=r"ids: \[3, 8\]"):
        bundle.run({"ids": np.ones((3, 8), np.int64)})


@pytest.mark.full
def test_a_model_of_one_shape_has_no_fallback(tmp_path):
    file = small_model(tmp_path / "small.onnx")
    summary = compiled(file, tmp_path / "bundle")
    assert summary.other_shapes.footprint is None
    assert not read_manifest(tmp_path / "bundle").fallbacks


@pytest.mark.full
def test_a_backend_list_without_frameworks_is_noted(tmp_path):
    file = token_model(tmp_path / "tokens.onnx")
    summary = compiled(file, tmp_path / "bundle", shapes=SETS[:1], backends=("tvm",))
    assert any("add onnxruntime or openvino to --backends" in note for note in summary.notes)


@pytest.mark.full
def test_padding_that_changes_numbers_is_refused(tmp_path):
    file = token_model(tmp_path / "tokens.onnx", mixing=True)
    with pytest.raises(OptionError, match="with padding the numbers are not the original model's"):
        compiled(file, tmp_path / "bundle", shapes=SETS, pad=("ids:1",))
    assert not (tmp_path / "bundle").exists()


REFUSED_PADS = [
    ("ids", r"write INPUT:AXIS"),
    ("ids:x", r"write INPUT:AXIS"),
    ("ids:1,value=nan", r"write INPUT:AXIS"),
    ("ids:1,colour=red", r"write INPUT:AXIS"),
    ("ids:2", r"ids: int64\[\?, \?\] has no open axis 2"),
    ("x:1", "the model has no input 'x'; it has ids"),
    ("ids:1,crop=y:1", "the model has no output 'y'; it has logits"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED_PADS)
def test_a_wrong_pad_is_refused_before_measuring(tmp_path, text, message):
    file = token_model(tmp_path / "tokens.onnx")
    with pytest.raises(OptionError, match=message):
        compiled(file, tmp_path / "bundle", shapes=SETS, pad=(text,), measure_budget_s=1e6)


@pytest.mark.full
def test_callers_may_override_a_default(tmp_path):
    file = original_models.flushed_scale_model(tmp_path / "scale.onnx")
    summary = compiled(file, tmp_path / "bundle")
    assert any("the default of factor is a constant" in note for note in summary.notes)
    bundle, original = collage.load(tmp_path / "bundle"), onnxruntime.InferenceSession(file)
    assert bundle.manifest.defaults == {"main": ("factor",)}
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}
    for factor in (None, 2.0, 3.0):
        if factor is not None:
            feeds["factor"] = np.array([factor], np.float32)
        np.testing.assert_allclose(bundle.run(feeds)["y"], original.run(None, feeds)[0], 1e-6)
    assert bundle.dispatch_counts().functions == {"main": 1}
    assert bundle.dispatch_counts().fallback == 2


@pytest.mark.full
@pytest.mark.parametrize("option", ["exact_only", "fallback"])
def test_a_default_is_refused_without_a_fallback(option, tmp_path):
    file = original_models.flushed_scale_model(tmp_path / "scale.onnx")
    summary = compiled(
        file, tmp_path / "bundle", allow_slower=True, **{option: option == "exact_only"}
    )
    assert any("calls that give it are refused" in note for note in summary.notes)
    feeds = {"x": np.ones((2, 8), np.float32)}
    bundle = collage.load(tmp_path / "bundle")
    assert (bundle.run(feeds)["y"] == 3).all()
    with pytest.raises(InputError, match="compile for the CPU without --exact-only"):
        bundle.run(feeds | {"factor": np.ones(1, np.float32)})


def test_an_output_without_a_type_is_noted(tmp_path, monkeypatch):
    file = token_model(tmp_path / "tokens.onnx")
    interface = replace(read_interface(file), untyped="ONNX Runtime has no type for the output n")
    monkeypatch.setattr(other_shapes, "read_interface", lambda path: interface)
    options = Options(backends=("onnxruntime",), threads=1, cache_dir=tmp_path / "cache")
    tokens_model = Model(file, interface.sha256, (), frozenset())
    with open_compile_context(options) as context:
        notes = [
            answer_other_shapes(
                tokens_model, (), tmp_path / "model.so", options=chosen, context=context
            ).note
            for chosen in (options, replace(options, exact_only=True))
        ]
    assert notes == [f"no fallback for other shapes: {interface.untyped}", ""]
    with pytest.raises(OptionError, match="no type for the output n; leave --pad out"):
        check_pads([ModelEntry("main", file)], replace(options, pad=("ids:1",)))


@pytest.mark.full
def test_an_output_typed_by_onnx_runtime_has_a_fallback(tmp_path):
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Unique", ["r"], ["y", "places", "counts"], domain="com.microsoft"),
    ]
    document = model(nodes, {"x": ("float32", ("n",))}, ["y"], domains=["com.microsoft"])
    file = save(document, tmp_path)
    summary = compiled(file, tmp_path / "bundle", shapes=({"x": (9,)},))
    assert summary.other_shapes.fallbacks == {"main": "onnxruntime"}
    bundle, original = collage.load(tmp_path / "bundle"), onnxruntime.InferenceSession(file)
    for length in (9, 5):
        x = floats(length)
        np.testing.assert_array_equal(bundle.run({"x": x})["y"], original.run(None, {"x": x})[0])


def test_old_files_have_no_overridable_weights(tmp_path):
    file = original_models.flushed_scale_model(tmp_path / "scale.onnx")
    assert read_interface(file).defaults == ("factor",)
    model = onnx.load(file)
    model.ir_version = 3
    onnx.save(model, file)
    assert read_interface(file).defaults == ()


def test_bench_tells_way_and_fallback_of_shapes(tokens, capsys):
    shapes = ["--shapes", "ids=1,8", "--shapes", "ids=1,5", "--shapes", "ids=3,30"]
    assert main(["bench", str(tokens[1]), "--seconds", "0.02s", "--json", *shapes]) == 0
    measured = json.loads(capsys.readouterr().out)["shapes"]
    assert [entry["way"] for entry in measured] == ["exact", "padded", "fallback"]
    assert all(entry["fallback_seconds"] > 0 for entry in measured)

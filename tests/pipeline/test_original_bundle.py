"""Models that no executable can run become bundles of the original model alone."""

import json

import numpy as np
import pytest

import collage
from collage.errors import BundleError, ModelError
from collage.options import Options
from collage.runtime.manifest import read_manifest, refuse_unproven
from collage.store.blobs import digest_of
from tests.support import original_models
from tests.support.entry_models import WEIGHTS, write_net


def compiled(file, output, **options):
    cache_dir = output.parent / "cache"
    return collage.compile(
        file,
        output=output,
        options=Options(backends=("onnxruntime",), threads=1, cache_dir=cache_dir, **options),
    )


@pytest.fixture
def text_bundle(tmp_path):
    file = original_models.text_model(tmp_path / "text.onnx")
    summary = compiled(file, tmp_path / "bundle", shapes=({"x": (3,)},))
    return summary, tmp_path / "bundle"


def test_text_is_answered_at_any_shape(text_bundle):
    summary, bundle = text_bundle
    assert "'x' is a tensor(string)" in summary.gate.reason
    loaded = collage.load(bundle)
    loaded.check()
    for words in (["two"], ["one", "two", "ü"]):
        assert loaded.run({"x": np.array(words)})["y"].tolist() == [2 * word for word in words]
    counts = loaded.dispatch_counts()
    assert counts.fallback_shapes == {"x: [3]": 2, "x: [1]": 1}
    assert counts.fallback == 3
    assert counts.functions == {}


def test_such_a_bundle_may_be_published_and_served(text_bundle):
    manifest = read_manifest(text_bundle[1])
    refuse_unproven(manifest, "the bundle")
    assert manifest.executable == ""
    assert manifest.entries == ("main",)
    assert "original.onnx" in manifest.files


def test_a_changed_model_is_not_loaded(text_bundle):
    file = text_bundle[1] / "original.onnx"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(BundleError, match=r"original\.onnx was changed"):
        collage.load(text_bundle[1])


def test_changed_golden_data_fails_the_self_check(text_bundle):
    golden = text_bundle[1] / "golden.npz"
    with np.load(golden) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["fallback/output/n"] = arrays["fallback/output/n"] + 5
    np.savez(golden, **arrays)
    manifest = json.loads((text_bundle[1] / "manifest.json").read_text())
    del manifest["files"]["golden.npz"]
    (text_bundle[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="no golden data"):
        collage.load(text_bundle[1]).check()
    manifest["files"]["golden.npz"] = digest_of(golden)
    (text_bundle[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="output n differs from the golden data"):
        collage.load(text_bundle[1]).check()


BUILDERS = [
    original_models.sequence_model,
    original_models.map_model,
    original_models.dictionary_model,
    original_models.float8_model,
]


@pytest.mark.parametrize("build", BUILDERS)
def test_every_type_has_golden_data(tmp_path, build):
    compiled(build(tmp_path / "m.onnx"), tmp_path / "bundle")
    bundle = collage.load(tmp_path / "bundle", warm=True)
    bundle.check()
    assert bundle.benchmark(0.01) > 0


def test_no_fallback_refuses_such_a_model(tmp_path):
    file = original_models.text_model(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"'x' is a tensor\(string\).*without --no-fallback"):
        compiled(file, tmp_path / "bundle", fallback=False)
    assert not (tmp_path / "bundle").exists()


def test_inputs_of_another_shape_than_bound_are_refused(tmp_path):
    file = original_models.map_model(tmp_path / "m.onnx")
    with pytest.raises(collage.errors.InputError, match=r"'x' to \[2, 4\]"):
        compiled(file, tmp_path / "bundle", shapes=({"x": (2, 4)},))


@pytest.mark.full
def test_a_text_model_is_an_entry_beside_a_compiled_one(tmp_path):
    files = {name: tmp_path / f"{name}.onnx" for name in ("net", "text", "more")}
    write_net(files["net"], "Tanh")
    for name in ("text", "more"):
        original_models.text_model(files[name])
    summary = compiled(
        files, tmp_path / "bundle", shapes=({"net/x": (4, 48), "text/x": (3,)},), dims={},
        verify_s=0.1, measure_budget_s=2, refine_s=0, tune_s=0, allow_slower=True, exact_only=True,
    )  # fmt: skip
    assert [model.entry for model in summary.models] == ["net", "text", "more"]
    assert [function.entry for function in summary.functions] == ["net", "text", "more"]
    bundle = collage.load(tmp_path / "bundle")
    bundle.check()
    assert bundle.entries == ("net", "text", "more")
    x = np.ones((4, 48), np.float32)
    expected = np.tanh(np.maximum(x @ WEIGHTS["w"], 0) @ WEIGHTS["v"])
    np.testing.assert_allclose(bundle.run({"x": x}, "net")["y"], expected, rtol=1e-4, atol=1e-5)
    for entry in ("text", "more"):
        assert bundle.run({"x": np.array(["ü"])}, entry)["y"].tolist() == ["üü"]
    both = {name: files[name] for name in ("text", "more")}
    compiled(both, tmp_path / "texts", shapes=({"text/x": (2,)},))
    assert collage.load(tmp_path / "texts").entries == ("text", "more")


def golden(bundle):
    with np.load(bundle / "golden.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def test_golden_data_of_a_text_model_are_the_samples(tmp_path):
    file = original_models.text_model(tmp_path / "text.onnx")
    sets = [{"x": np.array(["a secret", "b"])}, {"x": np.array(["c"])}]
    compiled(file, tmp_path / "bundle", samples=sets)
    texts = {name: value.tolist() for name, value in golden(tmp_path / "bundle").items()}
    assert ["a secret", "b"] in texts.values()
    collage.load(tmp_path / "bundle").check()
    compiled(file, tmp_path / "generated", samples=sets, golden="generated", shapes=({"x": (2,)},))
    generated = golden(tmp_path / "generated").values()
    assert not any("a secret" in str(value.tolist()) for value in generated)


def test_samples_of_another_type_are_refused(tmp_path):
    file = original_models.text_model(tmp_path / "text.onnx")
    with pytest.raises(
        collage.errors.InputError, match="input x holds strings, and its sample float"
    ):
        compiled(file, tmp_path / "bundle", samples={"x": np.zeros(2)})

"""Files become entries of one bundle: compile, loading, commands and documents."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

import collage
from collage.cli import main
from collage.entries import find_entries
from collage.errors import DimensionError
from collage.pipeline import compile_model
from collage.report.progress import SilentProgress
from tests.support.entry_models import WEIGHTS, write_net

pytestmark = pytest.mark.full

NAMES = ("encoder", "decoder", "twin")
SIZES = {"encoder": 4, "decoder": 4, "twin": 4, "decoder_1": 6}
LAST = {"encoder": np.tanh, "decoder": np.abs, "twin": np.tanh}


class StageRecorder(SilentProgress):
    """A display that keeps its stages."""

    def __init__(self):
        super().__init__()
        self.stages = []

    @contextmanager
    def stage(self, name, total=None):
        with super().stage(name, total) as stage:
            self.stages.append(stage)
            yield stage


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile three entries; return the folder of models and bundle, and the stages."""
    folder, progress = tmp_path_factory.mktemp("entries"), StageRecorder()
    for name, last in (("encoder", "Tanh"), ("decoder", "Abs")):
        write_net(folder / f"{name}.onnx", last)
    models = {name: folder / f"{name}.onnx" for name in ("encoder", "decoder")}
    options = collage.Options(
        shapes=({f"{name}/x": (4, 48) for name in NAMES}, {"decoder/x": (6, 48)}),
        threads=1, workers=1, measure_budget_s=2, verify_s=0.1, refine_s=0, tune_s=0, backends=("tvm",),
        allow_slower=True, fallback=False, cache_dir=folder / "store",
    )  # fmt: skip
    entries = find_entries(models | {"twin": folder / "encoder.onnx"})
    compile_model(entries, options, folder / "bundle", progress)
    return folder, progress.stages


@pytest.fixture
def folder(compiled):
    return compiled[0]


def test_each_entry_runs_its_own_model(folder):
    bundle = collage.load(folder / "bundle")
    bundle.check()
    assert bundle.entries == NAMES
    assert {signature.function for signature in bundle.signatures} == set(SIZES)
    for signature in bundle.signatures:
        x = np.random.default_rng(1).standard_normal((SIZES[signature.function], 48))
        x = x.astype("float32")
        expected = LAST[signature.entry](np.maximum(x @ WEIGHTS["w"], 0) @ WEIGHTS["v"])
        outputs = bundle.run({"x": x}, entry=signature.entry)
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-4, atol=1e-5)


def test_equal_weights_are_in_the_bundle_once(folder):
    content = (folder / "bundle" / "model.so").read_bytes()
    for weight in WEIGHTS.values():
        assert content.count(weight.tobytes()) + content.count(weight.T.tobytes()) == 1


def test_an_equal_function_is_not_measured_again(compiled):
    """The twin's only function is the encoder's."""
    measured = [stage for stage in compiled[1] if stage.name == "measure"]
    encoder, *_, twin = measured
    assert len(measured) == len(SIZES)
    assert encoder.done > encoder.cached == 0
    assert twin.done == twin.cached >= encoder.done


def test_documents_name_the_entry_of_each_function(folder, capsys):
    manifest = json.loads((folder / "bundle" / "manifest.json").read_text())
    models = {model["entry"]: model["path"] for model in manifest["provenance"]["models"]}
    assert models == {"encoder": "encoder.onnx", "decoder": "decoder.onnx", "twin": "encoder.onnx"}
    assert main(["report", str(folder / "bundle"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    report = json.loads((folder / "bundle" / "report.json").read_text())
    assert [model["entry"] for model in summary["models"]] == list(NAMES)
    for functions in (manifest["functions"], summary["functions"], report["functions"]):
        assert [function["entry"] for function in functions] == [
            "encoder", "decoder", "decoder", "twin",
        ]  # fmt: skip
    page = (folder / "bundle" / "report.html").read_text()
    assert all(f"{name} sha256" in page for name in NAMES)
    node = ["explain", str(folder / "bundle"), "--node", "3", "--function", "decoder_1"]
    assert main(node) == 0
    assert "Abs" in capsys.readouterr().out


def test_commands_take_the_entry(folder, capsys, tmp_path):
    bundle, x = str(folder / "bundle"), tmp_path / "x.npy"
    np.save(x, np.ones((6, 48), "float32"))
    assert main(["run", bundle, "--entry", "decoder", "--input", f"x={x}"]) == 0
    assert capsys.readouterr().out == "y  float32[6, 48]\n"
    assert main(["run", bundle, "--input", f"x={x}"]) == 2
    assert "name one of the bundle's entries" in capsys.readouterr().err
    model = f"decoder={folder / 'decoder.onnx'}"
    assert main(["bench", bundle, "--seconds", "0.05", "--model", model, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["functions"]) == ["decoder", "decoder_1"]
    assert (
        main(["bench", bundle, "--seconds", "0.05", "--model", str(folder / "decoder.onnx")]) == 2
    )
    assert "none for " in capsys.readouterr().err
    assert main(["candidates", str(folder), "--dim", "n=3", "--backends", "tvm", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["backends"]
    assert [backend["function"] for backend in listed] == ["decoder", "encoder"]


def test_an_unbound_dimension_names_its_entry(folder, tmp_path):
    options = collage.Options(dims={"decoder/n": 2}, backends=("tvm",), cache_dir=tmp_path)
    with pytest.raises(DimensionError, match=r"--shape encoder/x=\?,48\n  or --dim encoder/n="):
        collage.compile(folder, options, output=tmp_path / "bundle")

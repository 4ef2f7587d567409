"""What the gate refuses is not written, unless it was asked for, and then it goes nowhere."""

import json

import pytest

from collage.cli import main
from collage.verify.interleaved_benchmark import InterleavedBenchmark, latency_of
from tests.support.models import small_model

ROUNDS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    small_model(folder / "small.onnx")
    return folder


@pytest.fixture
def slow_plans(monkeypatch):
    """Let every comparison say that plans take 1.5 times as long as frameworks."""

    def compare(self, names, seconds_each, on_round=None):
        frameworks = {"onnxruntime", "openvino"}
        return {name: latency_of([1.0 if name in frameworks else 1.5] * ROUNDS) for name in names}

    monkeypatch.setattr(InterleavedBenchmark, "compare", compare)


def compiled(folder, output, *arguments):
    return main(["compile", str(folder / "small.onnx"), "-o", str(output), "--threads", "1", "--quiet",
                 "--effort", "quick", "--budget", "1s", "--verify", "0.1s", "--backends", "onnxruntime",
                 "--cache-dir", str(folder / "store"), *arguments])  # fmt: skip


@pytest.mark.parametrize("more", [[], ["--no-fallback"]], ids=["", "no fallback"])
def test_a_slower_executable_is_not_written(folder, tmp_path, capsys, slow_plans, more):
    """The original-file plan is refused too where callers would wait longer for it."""
    assert compiled(folder, tmp_path / "bundle", *more) == 4
    said = capsys.readouterr().err
    assert "50.0 % slower than" in said
    assert "nothing was written" in said
    assert ("Without --no-fallback" in said) == bool(more)
    assert list(tmp_path.iterdir()) == []


def test_what_was_allowed_to_be_slower_says_so_and_goes_nowhere(
    folder, tmp_path, capsys, slow_plans
):
    assert compiled(folder, tmp_path / "bundle", "--no-fallback", "--allow-slower") == 0
    assert "gate        not passed: " in capsys.readouterr().out
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["allow_slower"]
    (gate,) = manifest["gate"]
    assert (gate["verdict"], gate["ratios"]["openvino"]["low"]) == ("slower", 1.5)
    assert main(["run", str(tmp_path / "bundle")]) == 0
    assert main(["publish", str(tmp_path / "bundle"), str(tmp_path / "shared")]) == 4
    assert "main is slower" in capsys.readouterr().err


def test_what_passes_is_not_marked_as_slower(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(
        InterleavedBenchmark,
        "compare",
        lambda self, names, *_: {name: latency_of([1.0] * ROUNDS) for name in names},
    )
    assert compiled(folder, tmp_path / "bundle", "--allow-slower") == 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert not manifest["allow_slower"]
    assert manifest["gate"][0]["verdict"] == "not slower"

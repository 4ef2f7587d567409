"""What people type by mistake ends in one line that says what is wrong, before anything is computed."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, one that no toolchain knows, and a file that is nothing of the kind."""
    for name, domain, op in (("model", "", "Relu"), ("foreign", "my.ops", "Foo")):
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x", "y"))
        node = helper.make_node(op, ["x"], ["y"], domain=domain)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
        graph = helper.make_graph([node], "g", [x], [y])
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.save(made, tmp_path / f"{name}.onnx")
    (tmp_path / "file").write_text("a text")
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("compile none.onnx", 2, "none.onnx: no such file"),
        ("compile file", 2, "file: not an ONNX model"),
        ("compile foreign.onnx", 2, "foreign.onnx: ONNX Runtime does not load the model with"),
        ("compile foreign.onnx", 2, "shapes: Fatal error: my.ops:Foo"),
        ("compile model.onnx -o file", 5, "file is a file"),
        ("compile model.onnx -o file/deep/bundle", 5, "/file is a file"),
        ("compile model.onnx --threads 100000", 2, "the processors of this machine, not 100000"),
        ("compile model.onnx --backends=", 2, "unknown backend ''"),
        ("compile model.onnx --seed -1", 2, "seed must not be negative"),
        ("compile model.onnx --verify 0s", 2, "verify_s must be above 0"),
        ("compile model.onnx --store file", 2, "file is a file; a store is a folder"),
        ("compile model.onnx --store http://x", 2, "a store is a folder or s3://"),
        ("run file", 5, "file holds no bundle"),
        ("explain file", 5, "file is damaged"),
        ("diff none none", 2, "none holds no report.json"),
        ("bench none", 5, "none holds no bundle"),
        ("gc file", 2, "file is a file; a store is a folder"),
        ("fetch store ocr/production -o bundle", 6, "no alias 'ocr/production'"),
    ],
)
def test_a_mistake_is_named(folder, capsys, line, code, said):
    command, *words = line.split()
    more = ["--cache-dir", "cache"] if command == "compile" else []
    assert main([command, *words, *more]) == code
    assert said in capsys.readouterr().err
    assert not (folder / "bundle").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compile model.onnx --budget=nan", "'nan' is no duration"),
        ("compile model.onnx --budget=-5s", "'-5s' is no duration"),
        ("compile model.onnx --verify=x", "'x' is no duration"),
        ("compile model.onnx --timeout=s", "'s' is no duration"),
        ("compile model.onnx --memory=infGiB", "'infGiB' is no size"),
        ("compile model.onnx --memory=GiB", "'GiB' is no size"),
        ("bench none --seconds=-1", "'-1' is no duration"),
    ],
)
def test_numbers_that_are_none_are_refused_by_the_parser(capsys, line, said):
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    assert said in capsys.readouterr().err


def test_sizes_and_durations_are_read(folder, capsys):
    """What follows the options is wrong, and is what is complained of."""
    line = "compile none.onnx --memory=1.5GiB --budget=2m --timeout=30 --tune=0s --verify=0.5s"
    line += " --cache-dir cache"
    assert main(line.split()) == 2
    assert "none.onnx" in capsys.readouterr().err

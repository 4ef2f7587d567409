"""What people type by mistake ends in one line that says what is wrong, before anything is computed."""

import argparse
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.cli import main
from collage.cli.command_line import make_parser
from collage.errors import EXIT_CODES, CollageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, one that no toolchain knows, and a file that is nothing of the kind."""
    for name, domain, op in (("model", "", "Relu"), ("foreign", "my.ops", "Foo")):
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x", "y"))
        node = helper.make_node(op, ["x"], ["y"], domain=domain)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
        graph = helper.make_graph([node], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "file").write_text("a text")
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


MISTAKES = pytest.mark.parametrize(
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
        ("compile model.onnx --store http://x", 2, "a store is a folder, s3://"),
        ("run file", 5, "file holds no bundle"),
        ("explain file", 5, "file is damaged"),
        ("diff none none", 2, "none holds no report.json"),
        ("bench none", 5, "none holds no bundle"),
        ("gc file", 2, "file is a file; a store is a folder"),
        ("fetch store ocr/production -o bundle", 6, "no alias 'ocr/production'"),
        ("publish none STORE", 5, "none holds no bundle"),
        ("unpublish STORE 0123", 6, "'0123' is no blob's digest"),
        ("alias STORE ocr/new ocr/old", 6, "no alias 'ocr/old'"),
        ("unalias file ocr/old", 2, "file is a file; a store is a folder"),
        ("aliases none", 2, "there is no folder none"),
        ("candidates file", 2, "file: not an ONNX model"),
        ("register mlflow+http://localhost:1/ m 1 model.onnx", 2, "MLflow"),
        ("report none", 2, "none holds no report"),
    ],
)


@MISTAKES
def test_a_mistake_is_named(folder, capsys, line, code, said):
    command, *words = line.split()
    cache_arguments = ["--cache-dir", "cache"] if command == "compile" else []
    assert main([command, *words, *cache_arguments]) == code
    assert said in capsys.readouterr().err
    assert not (folder / "bundle").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compile model.onnx --budget=nan", "'nan' is not a duration"),
        ("compile model.onnx --budget=-5s", "'-5s' is not a duration"),
        ("compile model.onnx --verify=x", "'x' is not a duration"),
        ("compile model.onnx --timeout=s", "'s' is not a duration"),
        ("compile model.onnx --memory=infGiB", "'infGiB' is not a size"),
        ("compile model.onnx --memory=GiB", "'GiB' is not a size"),
        ("bench none --seconds=-1", "'-1' is not a duration"),
    ],
)
def test_numbers_that_are_none_are_refused_by_the_parser(capsys, line, said):
    assert main(line.split()) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.startswith(f"usage: collage {line.split()[0]}")


def test_sizes_and_durations_are_read(folder, capsys):
    """What follows the options is wrong, and is what is complained of."""
    line = "compile none.onnx --memory=1.5GiB --budget=2m --timeout=30 --tune=0s --verify=0.5s"
    line += " --cache-dir cache"
    assert main(line.split()) == 2
    assert "none.onnx" in capsys.readouterr().err


def error_of(output):
    """Read the one document on standard output."""
    (error,) = json.loads(output).values()
    assert error.keys() == {"exit_code", "reason", "advice"}
    assert error["reason"]
    assert error["advice"]
    return error


@MISTAKES
def test_with_json_a_mistake_is_one_document(folder, capsys, line, code, said):
    command, *words = line.split()
    cache_arguments = ["--cache-dir", "cache"] if command == "compile" else []
    assert main([command, "--json", *words, *cache_arguments]) == code
    output = capsys.readouterr()
    error = error_of(output.out)
    assert error["exit_code"] == code
    assert said in f"{error['reason']}; {error['advice']}"
    assert "collage: " not in output.err


def commands():
    (found,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return sorted(found.choices)


@pytest.mark.parametrize("command", commands())
def test_every_command_takes_json_and_says_what_it_cannot_parse(capsys, command):
    assert main([command, "--json", "--no-such-option"]) == 2
    error = error_of(capsys.readouterr().out)
    assert "--help`" in error["advice"]
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("line", [[], ["nonsense"], ["--json"]])
def test_a_line_without_a_command_is_exit_code_2(capsys, line):
    assert main(line) == 2
    output = capsys.readouterr()
    assert "COMMAND" in output.out + output.err or "invalid choice" in output.err


def test_an_unexpected_error_tells_where_its_trace_is(folder, capsys, monkeypatch):
    def fail(_):
        raise KeyError("s3://user:hunter22@host/key")

    monkeypatch.setattr("collage.pipeline.doctor", fail)
    for flags in ([], ["--json"]):
        assert main(["doctor", *flags]) == 1
    output = capsys.readouterr()
    error = error_of(output.out)
    assert (error["exit_code"], "KeyError" in error["reason"]) == (1, True)
    assert "Traceback" not in output.err
    assert output.err.count("\n") == 1
    for said in (error["advice"], output.err):
        trace = Path(said.split()[-1]).read_text()
        assert "Traceback" in trace
        assert "hunter22" not in trace + said


def test_an_interrupted_command_says_that_nothing_is_lost(capsys, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("collage.pipeline.doctor", interrupt)
    assert main(["doctor", "--json"]) == 130
    assert "kept" in error_of(capsys.readouterr().out)["advice"]


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"collage {collage.__version__}\n"


def error_classes(of=CollageError):
    return {of} | {error for sub in of.__subclasses__() for error in error_classes(sub)}


def test_exit_codes_are_one_table(capsys):
    """What errors return, what --help lists and what the README lists."""
    assert {error.exit_code for error in error_classes()} < EXIT_CODES.keys()
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    section = readme.partition("## Exit codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == dict(EXIT_CODES)
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    output = capsys.readouterr().out
    assert all(re.search(rf"^  {code} +{re.escape(meaning)}$", output, re.MULTILINE)
               for code, meaning in EXIT_CODES.items())  # fmt: skip

"""`collage register`: a file becomes a candidate of a registry of files, with its external data."""

import json

import onnx
import pytest

from collage.cli import main
from collage.entries import find_entries
from collage.registry import open_registry
from tests.registry.conftest import make_model


@pytest.mark.parametrize("external", [False, True])
def test_a_file_becomes_a_candidate(tmp_path, capsys, external):
    model = tmp_path / "source.onnx"
    onnx.save(
        make_model(), model, save_as_external_data=external, size_threshold=0, location="w.bin"
    )
    registry = str(tmp_path / "registry")
    for _ in range(2):  # again changes nothing
        assert main(["register", registry, "text-ocr", "3", str(model), "--json"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert json.loads(said) == {"name": "text-ocr", "version": "3", "alias": "candidate"}
    (candidate,) = open_registry(registry).candidates()
    assert (candidate.name, candidate.version) == ("text-ocr", "3")
    (tmp_path / "fetched").mkdir()
    fetched = open_registry(registry).download(candidate, tmp_path / "fetched")
    assert onnx.load(fetched).graph == onnx.load(model).graph


def test_several_files_become_one_version(tmp_path, capsys):
    for name in ("encoder", "decoder"):
        onnx.save(make_model(), tmp_path / f"{name}.onnx", save_as_external_data=True,
                  size_threshold=0, location=f"{name}.bin")  # fmt: skip
    registry = str(tmp_path / "registry")
    models = [str(tmp_path / "encoder.onnx"), f"dec={tmp_path / 'decoder.onnx'}"]
    assert main(["register", registry, "speech", "1", *models]) == 0
    (tmp_path / "fetched").mkdir()
    (candidate,) = open_registry(registry).candidates()
    fetched = open_registry(registry).download(candidate, tmp_path / "fetched")
    assert [entry.name for entry in find_entries(fetched)] == ["dec", "encoder"]
    assert onnx.load(fetched / "dec.onnx").graph == onnx.load(tmp_path / "decoder.onnx").graph


def test_files_of_one_name_are_no_version(tmp_path, capsys):
    for name in ("encoder", "decoder"):
        (tmp_path / name).mkdir()
        onnx.save(make_model(), tmp_path / name / f"{name}.onnx", save_as_external_data=True,
                  size_threshold=0, location="w.bin")  # fmt: skip
    models = [str(tmp_path / name / f"{name}.onnx") for name in ("encoder", "decoder")]
    assert main(["register", str(tmp_path / "registry"), "speech", "1", *models]) == 2
    assert "two files called w.bin" in capsys.readouterr().err


def test_without_an_alias_it_is_no_candidate(tmp_path, capsys):
    onnx.save(make_model(), tmp_path / "m.onnx")
    registry = str(tmp_path / "registry")
    assert main(["register", registry, "m", "1", str(tmp_path / "m.onnx"), "--alias", ""]) == 0
    assert list(open_registry(registry).candidates()) == []
    assert open_registry(registry).find("m", "1").version == "1"


def test_what_is_no_model_is_not_registered(tmp_path, capsys):
    (tmp_path / "no.onnx").write_bytes(b"no model")
    assert main(["register", str(tmp_path / "r"), "m", "1", str(tmp_path / "no.onnx")]) == 2
    assert "not an ONNX model" in capsys.readouterr().err
    assert main(["register", "mlflow+http://127.0.0.1:9", "m", "1", str(tmp_path / "no.onnx")]) == 2
    assert "MLflow's own tools" in capsys.readouterr().err


def test_options_are_checked_and_stored_beside_the_model(tmp_path, capsys):
    onnx.save(make_model(), tmp_path / "m.onnx")
    registry = str(tmp_path / "registry")
    command = ["register", registry, "m", "1", str(tmp_path / "m.onnx"), "--options"]
    options = tmp_path / "options.yaml"
    options.write_text("store: /elsewhere")
    assert main([*command, str(options)]) == 2
    assert "'store' cannot be set" in capsys.readouterr().err
    assert list(open_registry(registry).candidates()) == []
    for text in ("dims: {batch: 1}", "dims: {batch: 2}"):
        options.write_text(text)
        assert main([*command, str(options)]) == 0
    (candidate,) = open_registry(registry).candidates()
    assert json.loads(open_registry(registry).user_tags(candidate).options) == {
        "dims": {"batch": 2}
    }
    assert main([*command, str(tmp_path / "absent.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err

"""What a flow is given is the address of a file, or the name of a registered model."""

import pytest

from collage.errors import ModelError
from collage.pipeline.model_source import fetch_source, is_address
from collage.store import open_store
from tests.frontend.test_model_files import SECRET, adding, external


@pytest.mark.parametrize(
    ("text", "is_file"),
    [
        ("s3://models/rec.onnx?region=eu-west-1", True),
        ("file:///models/rec.onnx", True),
        ("/models/rec.onnx", True),
        ("./rec.onnx", True),
        ("models/rec.onnx", True),
        ("rec.onnx", False),
        ("rec", False),
        ("ocr/rec", False),
    ],
)
def test_a_name_without_a_folder_is_a_registered_model(text, is_file):
    assert is_address(text) == is_file


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "model.onnx"])
def test_external_data_of_a_stored_model_stays_below_it(tmp_path, location, monkeypatch):
    store = open_store(str(tmp_path / "store"))
    store.create("models/model.onnx", adding(external(location), tmp_path / "model"))
    store.create("secret", SECRET.tobytes())
    inner = open_store(str(tmp_path / "store" / "models"))
    monkeypatch.setattr("collage.pipeline.model_source.open_store", lambda *_, **__: inner)
    (tmp_path / "fetched").mkdir()
    with pytest.raises(ModelError, match=r"outside of the model|names itself"):
        fetch_source("s3://models/model.onnx", tmp_path / "fetched")
    assert [file.name for file in (tmp_path / "fetched").iterdir()] == ["model.onnx"]

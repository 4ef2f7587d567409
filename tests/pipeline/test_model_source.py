"""What a flow is given is the address of a file, or the name of a registered model."""

import pytest

from collage.errors import ModelError
from collage.pipeline.model_source import fetch_source, is_address
from collage.pipeline.request import fetch_models, submit
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
        ("models/speech/", True),
        ("s3://models/speech/", True),
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


def test_a_folder_of_models_is_fetched_whole(tmp_path, monkeypatch):
    store = open_store(str(tmp_path / "store"))
    for name in ("decoder", "encoder"):
        store.create(f"{name}.onnx", adding(external(f"{name}.bin"), tmp_path / "model"))
        store.create(f"{name}.bin", SECRET.tobytes())
    store.create("other/deep.onnx", b"not at the top")
    monkeypatch.setattr("collage.pipeline.model_source.open_store", lambda *_, **__: store)
    fetched = fetch_source("s3://models/speech/", tmp_path)
    assert fetched == tmp_path / "speech"
    assert sorted(file.name for file in fetched.iterdir()) == [
        "decoder.bin", "decoder.onnx", "encoder.bin", "encoder.onnx",
    ]  # fmt: skip
    request = submit(store, fetched)
    assert request.name == "speech"
    assert [model.entry for model in request.models] == ["decoder", "encoder"]
    assert [entry.name for entry in fetch_models(store, request, tmp_path / "again")] == [
        "decoder", "encoder",
    ]  # fmt: skip


def test_a_folder_without_models_is_refused(tmp_path, monkeypatch):
    store = open_store(str(tmp_path / "store"))
    monkeypatch.setattr("collage.pipeline.model_source.open_store", lambda *_, **__: store)
    with pytest.raises(ModelError, match=r"has no file \*\.onnx"):
        fetch_source("s3://models/speech/", tmp_path / "fetched")
    with pytest.raises(ModelError, match="no such folder on the machine"):
        fetch_source(f"{tmp_path}/absent/", tmp_path / "fetched")

"""Samples of a version: files beside the model, and in MLflow a tag and the input example."""

import json

import numpy as np
import pytest

from collage.cli import main
from collage.errors import ModelError, OptionError
from collage.frontend.sample_files import read_samples
from collage.registry import open_registry
from collage.registry.base import SAMPLES_TAG
from collage.registry.input_example import EXAMPLE, example_files
from tests.registry.conftest import make_model, save_model

X = np.arange(64, dtype=np.float32).reshape(1, 64)


def samples_of(registry, version, folder, path=""):
    """Download a version and return its sample sets."""
    folder.mkdir(exist_ok=True)
    registry.download(version, folder)
    return read_samples(registry.samples(version, folder, path), {}).sets


def test_files_beside_the_model_are_its_samples(file_user, name, tmp_path):
    files = save_model(tmp_path / "model", external=False)
    for number in range(2):
        files[f"samples-{number}.npz"] = tmp_path / f"{number}.npz"
        np.savez(files[f"samples-{number}.npz"], x=X + number)
    version = file_user.registry.add(name, "1", files)
    sets = samples_of(file_user.registry, version, tmp_path / "copy")
    assert [float(arrays["x"][0, 0]) for arrays in sets] == [0.0, 1.0]
    (one,) = samples_of(file_user.registry, version, tmp_path / "copy", "samples-1.npz")
    assert float(one["x"][0, 0]) == 1.0


@pytest.mark.parametrize("path", ["absent.npz", "../outside.npz"])
def test_a_path_without_samples_is_refused(file_user, name, tmp_path, path):
    np.savez(tmp_path / "outside.npz", x=X)
    version = file_user.add(name)
    with pytest.raises(ModelError, match="has no samples at"):
        samples_of(file_user.registry, version, tmp_path / "copy", path)


def test_register_takes_samples(tmp_path):
    files = save_model(tmp_path / "model", external=False)
    np.savez(tmp_path / "photo.npz", x=X)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    command = ["register", str(tmp_path / "registry"), "small", "1", str(files["model.onnx"])]
    assert main([*command, "--samples", str(tmp_path / "bad.npz")]) == OptionError.exit_code
    assert main([*command, "--samples", str(tmp_path / "photo.npz")]) == 0
    registry = open_registry(str(tmp_path / "registry"))
    (arrays,) = samples_of(registry, registry.find("small"), tmp_path / "copy")
    np.testing.assert_array_equal(arrays["x"], X)


def write_example(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / EXAMPLE).write_text(content if isinstance(content, str) else json.dumps(content))
    return read_samples(list(example_files(folder, "the version")), {}).sets


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"inputs": {"x": [[1.5]], "n": 3}}, {"x": [[1.5]], "n": 3}),
        ({"inputs": [[1, 2]]}, {"arr_0": [[1, 2]]}),
        ({"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2.5], [3, 4.5]]}},
         {"a": [1, 3], "b": [2.5, 4.5]}),
    ],
)  # fmt: skip
def test_an_input_example_is_one_sample_set(tmp_path, content, expected):
    (arrays,) = write_example(tmp_path, content)
    assert {name: array.tolist() for name, array in arrays.items()} == expected


def test_a_version_without_an_example_has_no_samples(tmp_path):
    assert list(example_files(tmp_path, "the version")) == []


@pytest.mark.parametrize(
    "content", ["{", "[]", {"inputs": {"x": ["text"]}}, {"inputs": [[1], [1, 2]]}, {"other": 1}]
)
def test_an_example_without_arrays_says_what_to_do(tmp_path, content):
    with pytest.raises(ModelError, match=r"input_example of the version .*collage\.samples"):
        write_example(tmp_path, content)


def test_mlflow_names_samples_by_example_folder_and_tag(mlflow_user, name, tmp_path):
    import mlflow.onnx

    folder = tmp_path / "logged"
    mlflow.onnx.save_model(make_model(), folder, input_example={"x": X})
    version = mlflow_user.add_folder(name, folder)
    (arrays,) = samples_of(mlflow_user.registry, version, tmp_path / "a")
    np.testing.assert_array_equal(arrays["x"], X)

    (folder / "samples").mkdir()
    np.savez(folder / "samples" / "photo.npz", x=X + 1)
    np.savez(folder / "other.npz", x=X + 2)
    version = mlflow_user.add_folder(name, folder)
    (arrays,) = samples_of(mlflow_user.registry, version, tmp_path / "b")
    assert float(arrays["x"][0, 0]) == 1.0
    tag = (name, version.version, SAMPLES_TAG)
    mlflow_user.client.set_model_version_tag(*tag, "other.npz")
    (arrays,) = samples_of(mlflow_user.registry, version, tmp_path / "b")
    assert float(arrays["x"][0, 0]) == 2.0
    mlflow_user.client.set_model_version_tag(*tag, "none")
    assert samples_of(mlflow_user.registry, version, tmp_path / "b") == ()

"""The original model in the serving process: any type, any shape, and clear refusals."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from collage.errors import BundleError, InputError
from collage.frontend.original_interface import read_interface
from collage.runtime.bundle_folder import BundleFolder
from collage.runtime.fallback import Fallback
from collage.runtime.original_session import OriginalSession
from collage.store.blobs import digest_of
from tests.support import original_models


def open_session(file, framework="onnxruntime"):
    """Open the session of a model in `framework`, as a loaded bundle does."""
    interface = read_interface(file)
    fallback = Fallback(framework, file.name, interface.inputs, interface.outputs)
    verified = BundleFolder(file.parent).open_verified(file.name, digest_of(file))
    return OriginalSession(fallback, {file.name: verified}, threads=1)


def expected_outputs(file, feeds):
    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("shape", [(3,), (0,), (1,)])
def test_text_goes_in_and_out(tmp_path, shape):
    file = original_models.text_model(tmp_path / "m.onnx")
    feeds = {"x": np.array(["one", "Größe", "two"][: shape[0]], object)}
    outputs = open_session(file).run(feeds)
    assert outputs["y"].tolist() == [2 * text for text in feeds["x"]]
    assert outputs["y"].dtype == object
    np.testing.assert_array_equal(outputs["n"], [1, -1, 2][: shape[0]])


def test_a_fixed_length_text_array_is_text_too(tmp_path):
    file = original_models.text_model(tmp_path / "m.onnx")
    assert open_session(file).run({"x": np.array(["two"])})["n"].tolist() == [2]


def test_sequences_are_lists(tmp_path):
    file = original_models.sequence_model(tmp_path / "m.onnx")
    elements = [np.ones((2, 3), np.float32), np.zeros(5, np.float32)]
    outputs = open_session(file).run({"x": elements})
    assert [element.shape for element in outputs["y"]] == [(2, 3), (5,), (2, 3)]
    np.testing.assert_array_equal(outputs["y"][2], elements[0])
    assert outputs["n"] == 3


def test_maps_are_dicts(tmp_path):
    file = original_models.map_model(tmp_path / "m.onnx")
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert open_session(file).run(feeds)["p"] == expected_outputs(file, feeds)["p"]
    file = original_models.dictionary_model(tmp_path / "d.onnx")
    outputs = open_session(file).run({"x": {"dog": 2.0, "mouse": 1.0}})
    np.testing.assert_array_equal(outputs["y"], [[0, 2]])


def test_float8_is_passed_as_its_bytes(tmp_path):
    file = original_models.float8_model(tmp_path / "m.onnx")
    x = np.array([0.1, 1000, -3], np.float32)
    w = np.array([1.5, -2], ml_dtypes.float8_e4m3fn)
    outputs = open_session(file).run({"x": x, "w": w})
    assert outputs["y"].dtype == ml_dtypes.float8_e4m3fn
    np.testing.assert_array_equal(outputs["z"], [1.5, -2])
    assert float(outputs["y"][2]) == -3


def test_a_default_may_be_left_out_or_overridden(tmp_path):
    session = open_session(original_models.scale_model(tmp_path / "m.onnx"))
    x = np.ones((4, 2), np.float32)
    assert (session.run({"x": x})["y"] == 3).all()
    factor = np.array([5], np.float32)
    assert (session.run({"x": x, "factor": factor})["y"] == 5).all()


def test_outputs_stay_after_the_next_call(tmp_path):
    session = open_session(original_models.scale_model(tmp_path / "m.onnx"))
    first = session.run({"x": np.ones((4, 2), np.float32)})["y"]
    session.run({"x": np.zeros((4, 2), np.float32)})
    assert (first == 3).all()


REFUSED = [
    ({}, r"missing input 'x'; expected x: float32\[\?, 2\], factor: float32\[1\]"),
    ({"x": np.ones((1, 2), np.float32), "z": 1}, "unknown input 'z'"),
    ({"x": np.ones((1, 2))}, r"dtype float64; expected float32"),
    (
        {"x": np.ones((1, 2, 2), np.float32)},
        r"refuses the inputs \(.*rank.*\); it takes x: float32",
    ),
    ({"x": np.ones((1, 3), np.float32)}, r"refuses the inputs \(.*dimension"),
]


@pytest.mark.parametrize(("feeds", "message"), REFUSED)
def test_refused_inputs_say_what_is_taken(tmp_path, feeds, message):
    session = open_session(original_models.scale_model(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=message):
        session.run(feeds)


WRONG_TYPES = [
    (original_models.text_model, np.ones(2), "give an array of str"),
    (original_models.text_model, np.array(["a", 1], object), "element of type int; give text"),
    (original_models.text_model, np.array(["a\0b"], object), "zero byte"),
    (original_models.sequence_model, np.ones(2, np.float32), "is a ndarray; give a list"),
    (original_models.sequence_model, [], "empty sequence"),
    (original_models.dictionary_model, [1], "is a list; give a dict"),
]


@pytest.mark.parametrize(("build", "value", "message"), WRONG_TYPES)
def test_a_value_of_another_type_is_refused(tmp_path, build, value, message):
    session = open_session(build(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=message):
        session.run({"x": value})


def test_it_opens_at_the_first_call(tmp_path):
    session = open_session(original_models.scale_model(tmp_path / "m.onnx"))
    assert not session.is_open
    session.run({"x": np.ones((1, 2), np.float32)})
    assert session.is_open


def test_a_file_that_is_no_model_is_refused(tmp_path):
    file = original_models.scale_model(tmp_path / "m.onnx")
    fallback = open_session(file).fallback
    file.write_bytes(b"no model")
    verified = BundleFolder(tmp_path).open_verified(file.name, digest_of(file))
    session = OriginalSession(fallback, {file.name: verified}, threads=1)
    with pytest.raises(BundleError, match="cannot be opened in onnxruntime"):
        session.open()


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from tests.runtime.test_original_session import open_session
session = open_session(Path(sys.argv[1]), "openvino")
for rows in (1, 7, 3):
    outputs = session.run({"x": np.full((rows, 2), 2, np.float32)})
    assert outputs["y"].shape == (rows, 2) and (outputs["y"] == 4).all(), outputs
"""


def test_openvino_takes_any_shape_too(tmp_path):
    """In a process of its own, as OpenVINO's threads stay in it."""
    file = original_models.square_model(tmp_path / "m.onnx")
    subprocess.run([sys.executable, "-c", PROGRAM, str(file)], check=True)

"""Programs that have a session of ONNX Runtime run a bundle instead, and get the same answers."""

import json
import logging
import threading

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.errors import InputError
from collage.frontend.original_interface import read_interface
from collage.runtime.fallback import Fallback, fallback_document
from collage.store.blobs import digest_of
from tests.runtime import executables
from tests.support import original_models


@pytest.fixture(scope="module")
def session(bundle):
    return collage.InferenceSession(str(bundle), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """ONNX Runtime's session of a function of the bundle."""
    file = tmp_path_factory.mktemp("relu") / "relu.onnx"
    onnx.save(executables.relu_model((2, 8)), file)
    return onnxruntime.InferenceSession(file)


def open_fallback_bundle(file):
    """Open a bundle that consists of the original model alone."""
    interface = read_interface(file)
    fallback = Fallback("onnxruntime", file.name, interface.inputs, interface.outputs)
    manifest = {
        "schema_version": 3, "gate": [], "executable": "", "functions": [], "threads": 1,
        "cpu": {"model": "any", "features": []}, "libraries": {},
        "files": {file.name: digest_of(file)}, "fallbacks": [fallback_document(fallback)],
    }  # fmt: skip
    (file.parent / "manifest.json").write_text(json.dumps(manifest))
    return collage.InferenceSession(file.parent)


def described(arguments):
    return [(argument.name, argument.type, list(argument.shape)) for argument in arguments]


def test_a_session_runs_as_the_original_does(session, original):
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    for names in (None, [], ["y"]):
        (actual,), (expected,) = session.run(names, {"x": x}), original.run(names, {"x": x})
        np.testing.assert_array_equal(actual, expected)
    (from_lists,) = session.run(None, {"x": x.tolist()})
    np.testing.assert_array_equal(from_lists, expected)
    assert session.get_providers() == original.get_providers()


def test_an_extent_that_shape_sets_differ_in_is_open(session, original):
    assert described(session.get_inputs()) == [("x", "tensor(float)", [None, 8])]
    assert [output.name for output in session.get_outputs()] == ["y"]
    assert [output.type for output in session.get_outputs()] == [
        output.type for output in original.get_outputs()
    ]


@pytest.mark.parametrize("make", [original_models.text_model, original_models.map_model])
def test_types_have_the_names_of_onnx_runtime(tmp_path, make):
    file = make(tmp_path / "m.onnx")
    session, original = open_fallback_bundle(file), onnxruntime.InferenceSession(file)
    for actual, expected in (
        (session.get_inputs(), original.get_inputs()),
        (session.get_outputs(), original.get_outputs()),
    ):
        assert [(a.name, a.type) for a in actual] == [(e.name, e.type) for e in expected]


def test_bound_inputs_and_outputs_give_the_same(session, original):
    x = np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)
    results = []
    for target in (session, original):
        binding = target.io_binding()
        binding.bind_cpu_input("x", x if target is session else np.vstack([x, x]))
        binding.bind_output("y")
        target.run_with_iobinding(binding)
        results.append(binding.copy_outputs_to_cpu()[0][0])
    np.testing.assert_array_equal(*results)
    with pytest.raises(InputError, match="run_tensors"):
        session.io_binding().bind_output("y", "cuda", 0, np.float32, [1, 8], 4096)
    with pytest.raises(InputError, match="run_tensors"):
        session.io_binding().bind_output("y", buffer_ptr=4096)


def test_unknown_names_and_bytes_are_refused_with_advice(session, bundle):
    x = np.zeros((1, 8), np.float32)
    with pytest.raises(InputError, match="unknown output 'z'; the outputs are y"):
        session.run(["z"], {"x": x})
    with pytest.raises(InputError, match="'w'"):
        session.run(None, {"w": x})
    with pytest.raises(InputError, match="pass its path"):
        collage.InferenceSession(b"model")
    with pytest.raises(InputError, match="no entry 'decode'"):
        collage.InferenceSession(bundle, entry="decode")


def test_another_number_of_threads_is_told(bundle, caplog):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 7
    with caplog.at_level(logging.WARNING):
        collage.InferenceSession(collage.load(bundle), options)
    assert "ask for 7 threads; the bundle was compiled for 1" in caplog.text


def test_threads_share_a_session(session):
    wrong = []

    def call(value):
        x = np.full((1, 8), value, np.float32)
        for _ in range(50):
            if (session.run(None, {"x": x})[0] != max(value, 0)).any():
                wrong.append(value)

    threads = [threading.Thread(target=call, args=(value,)) for value in (-2.0, 1.0, 3.0, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""The Triton example against a stand-in of Triton's module, which exists only inside a Triton server.

The stand-in mimics the documented API of `triton_python_backend_utils` that the example uses; it proves
the example's own logic, and not that a Triton server loads it.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support import original_models
from tests.support.other_shapes import add_ways, copied

FOLDER = Path(__file__).parents[2] / "examples" / "triton" / "model_repository" / "collage"


class Tensor:
    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class TritonError:
    def __init__(self, message):
        self._message = message

    def message(self):
        return self._message


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class Request:
    def __init__(self, tensors, outputs=("y",)):
        self._tensors, self._outputs = tensors, list(outputs)

    def inputs(self):
        return self._tensors

    def requested_output_names(self):
        return self._outputs


@pytest.fixture
def model(monkeypatch):
    utils = ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.TritonError = Tensor, TritonError
    utils.InferenceResponse = InferenceResponse
    utils.TritonModelException = type("TritonModelException", (Exception,), {})
    utils.get_input_tensor_by_name = lambda request, name: next(
        (tensor for tensor in request.inputs() if tensor.name() == name), None
    )
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    spec = importlib.util.spec_from_file_location("triton_example", FOLDER / "1" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(bundle):
    """What Triton makes of config.pbtxt."""
    text = (FOLDER / "config.pbtxt").read_text()
    names = {
        side: re.findall(rf'^{side} .*?name: "(\w+)"', text, re.M) for side in ("input", "output")
    }
    assert 'key: "bundle"' in text
    config = {
        side: [{"name": name} for name in tensor_names] for side, tensor_names in names.items()
    }
    config["parameters"] = {"bundle": {"string_value": str(bundle)}}
    return {"model_config": json.dumps(config)}


def test_requests_of_every_shape_set_are_answered_in_order(model, bundle):
    triton_model = model.TritonPythonModel()
    triton_model.initialize(arguments(bundle))
    inputs = [np.random.default_rng(n).standard_normal((n, 8)).astype("float32") for n in (1, 2, 1)]
    answers = triton_model.execute([Request([Tensor("x", x)]) for x in inputs])
    for x, answer in zip(inputs, answers, strict=True):
        (y,) = answer.output_tensors()
        assert y.name() == "y"
        np.testing.assert_array_equal(y.as_numpy(), np.maximum(x, 0))
    triton_model.finalize()


def test_other_shapes_are_padded_or_go_to_the_fallback(model, bundle, tmp_path):
    """The fallback squares, where the functions are relu: the numbers tell the way."""
    folder = copied(bundle, tmp_path)
    add_ways(folder, original_models.square_model(folder / "original.onnx"))
    triton_model = model.TritonPythonModel()
    triton_model.initialize(arguments(folder))
    shapes = ((2, 8), (1, 8), (5, 2))
    answers = triton_model.execute(
        [Request([Tensor("x", np.full(shape, 3, "float32"))]) for shape in shapes]
    )
    for shape, number, answer in zip(shapes, (3, 3, 9), answers, strict=True):
        (y,) = answer.output_tensors()
        np.testing.assert_array_equal(y.as_numpy(), np.full(shape, number, "float32"))
    counts = triton_model.bundle.dispatch_counts()
    assert (counts.padded, counts.fallback) == ({"main_1": 1}, 1)


def test_a_wrong_request_fails_alone(model, bundle):
    triton_model = model.TritonPythonModel()
    triton_model.initialize(arguments(bundle))
    good, wrong = (Tensor("x", np.zeros((rows, 8), "float32")) for rows in (1, 5))
    answers = triton_model.execute(
        [Request([wrong]), Request([good]), Request([]), Request([good], [])]
    )
    assert [answer.has_error() for answer in answers] == [True, False, True, False]
    assert "takes the shapes" in answers[0].error().message()
    assert answers[3].output_tensors() == []


def test_an_unfit_bundle_fails_the_load(model, tmp_path):
    with pytest.raises(Exception, match=r"manifest\.json is missing") as raised:
        model.TritonPythonModel().initialize(arguments(tmp_path))
    assert type(raised.value).__name__ == "TritonModelException"

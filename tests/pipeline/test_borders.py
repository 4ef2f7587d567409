"""Bundles of models whose outputs no node computes."""

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from tests.support.valid_models import BUILDERS, model, value, weight


def every_border():
    """A graph with a result, an input and an initializer as outputs; the input is listed twice."""
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    outputs = ["y", "x", "w", "x"]
    inputs = [value("x"), value("unused", onnx.TensorProto.INT64, ())]
    return model([relu], outputs, inputs=inputs, weights=[weight("w", [1, 2])])


ONLY_INPUT = pytest.param(BUILDERS["only_input_is_output"], marks=pytest.mark.full)


@pytest.mark.parametrize("build", [every_border, ONLY_INPUT])
def test_a_bundle_returns_what_no_node_computes(build, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(build(), path)
    options = collage.Options(
        threads=1,
        backends=("onnxruntime",),
        cache_dir=tmp_path / "store",
        verify_s=0.05,
        measure_budget_s=2,
        refine_s=0,
        tune_s=0,
        fallback=False,
        allow_slower=True,
    )
    summary = collage.compile(path, options, output=tmp_path / "bundle")
    assert summary.gate.reason
    loaded = collage.load(tmp_path / "bundle")
    loaded.check()
    (signature,) = loaded.signatures
    inputs = {tensor.name: np.full(tensor.shape, -2, tensor.dtype) for tensor in signature.inputs}
    outputs = loaded.run(inputs)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert list(outputs) == list(dict.fromkeys(names))
    for name, right in zip(names, session.run(names, inputs), strict=True):
        np.testing.assert_array_equal(outputs[name], right)
    for array in outputs.values():  # results are the caller's own
        assert not any(np.shares_memory(array, source) for source in inputs.values())
    before = {name: array.copy() for name, array in outputs.items()}
    loaded.run({name: array * 2 for name, array in inputs.items()})
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, before[name])

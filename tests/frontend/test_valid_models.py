"""Valid models of every kind become an executable with the numbers of unoptimised ONNX Runtime.

Each model is one region of ONNX Runtime, assembled and called like a bundle; the search has other tests.
"""

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext
from collage.backends.registry import available_backends
from collage.frontend import import_model
from collage.frontend.inputs import random_inputs
from collage.frontend.region import region_values
from collage.rules.rule import HOST
from collage.runtime.session import ExecutableSession
from collage.verify.plan_executable import function_signature
from tests.support.valid_models import BUILDERS


def reference(path, inputs):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def executable(function, folder):
    """Assemble the function as one region of ONNX Runtime."""
    planned = []
    if function.graph.nodes:
        (backend,) = available_backends(("onnxruntime",))
        nodes = function.graph.everything
        kernel = backend.compile(function, nodes, BuildContext(1))
        planned.append(PlannedKernel(nodes, HOST, kernel, *region_values(function, nodes)))
    assemble([FunctionPlan(function, tuple(planned))], 1, folder / "model.so")
    return ExecutableSession(folder / "model.so", (function_signature(function),), 1)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_valid_model_becomes_an_executable(name, tmp_path):
    path = tmp_path / "a model's file.onnx"
    onnx.save(BUILDERS[name](), path)
    function = import_model(path, work_dir=tmp_path / "work").functions[0]
    session = executable(function, tmp_path)
    for seed in (0, 1):
        inputs = random_inputs(function, seed)
        expected = reference(path, inputs)
        actual = session.run(inputs)
        assert list(actual) == list(expected)
        for output, right in expected.items():
            assert actual[output].dtype == right.dtype
            np.testing.assert_allclose(actual[output], right, rtol=1e-5, atol=1e-6)

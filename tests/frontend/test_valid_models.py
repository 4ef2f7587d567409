"""Valid models of every kind become an executable with the numbers of unoptimised ONNX Runtime.

Each model is one region of ONNX Runtime, and one for each node but views, assembled and called like a
bundle; the search has other tests.
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
from collage.graph.index_set import first
from collage.rules.base_rules import is_host_node
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


def executable(function, folder, regions):
    """Assemble the function; ONNX Runtime computes each region but views."""
    (backend,) = available_backends(("onnxruntime",))
    graph, planned = function.graph, []
    for nodes in regions:
        is_view = nodes.bit_count() == 1 and is_host_node(graph, graph.nodes[first(nodes)])
        kernel = None if is_view else backend.compile(function, nodes, BuildContext(1))
        planned.append(PlannedKernel(nodes, HOST, kernel, *region_values(function, nodes)))
    assemble([FunctionPlan(function, tuple(planned))], 1, folder / "model.so")
    return ExecutableSession(folder / "model.so", (function_signature(function),), 1)


WHOLE_ONLY = ("strings_inside", "sequence_inside")
"""Models with values between nodes that no executable has."""


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        *((name, False) for name in BUILDERS),
        *((name, True) for name in BUILDERS if name not in WHOLE_ONLY),
    ],
)
def test_a_valid_model_becomes_an_executable(name, apart, tmp_path):
    path = tmp_path / "a model's file.onnx"
    onnx.save(BUILDERS[name](), path)
    function = import_model(path, work_dir=tmp_path / "work").functions[0]
    graph = function.graph
    whole = [graph.everything] if graph.nodes else []
    session = executable(
        function, tmp_path, [1 << n.index for n in graph.nodes] if apart else whole
    )
    for seed in (0, 1):
        inputs = random_inputs(function, seed)
        expected = reference(path, inputs)
        actual = session.run(inputs)
        assert list(actual) == list(expected)
        for output, right in expected.items():
            assert actual[output].dtype == right.dtype
            np.testing.assert_allclose(actual[output], right, rtol=1e-5, atol=1e-6)

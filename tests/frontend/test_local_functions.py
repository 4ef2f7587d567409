"""Local functions: expanded at import, so that equal calls have equal regions, measured once."""

import numpy as np
import onnx

from collage.frontend.importer import import_model
from collage.frontend.region import region_digest

TEXT = """
<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
main (float[2,8] x) => (float[2,8] y)
<float[8,8] first, float[8,8] second, float[8,8] third>
{
    a = local.layer (x, first)
    b = local.layer (a, second)
    y = local.layer (b, third)
}
<domain: "local", opset_import: ["" : 18]>
layer (state, weight) => (next) {
    product = MatMul (state, weight)
    active = Tanh (product)
    next = Add (active, state)
}
"""


def test_calls_of_one_function_have_one_digest(tmp_path):
    model = onnx.parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for value in model.graph.value_info:
        weight = random.standard_normal((8, 8)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "model.onnx")
    (function,) = import_model(tmp_path / "model.onnx", work_dir=tmp_path).functions
    assert [node.op for node in function.graph.nodes] == 3 * ["MatMul", "Tanh", "Add"]
    calls = [0b111 << 3 * call for call in range(3)]
    assert len({region_digest(function, call) for call in calls}) == 1
    assert region_digest(function, 0b11) == region_digest(function, 0b11 << 3)

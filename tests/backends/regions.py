"""Small models; tests compile their regions and compare them with ONNX Runtime on the whole model."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import Backend, BuildContext
from collage.frontend import Function, import_model
from tests.runtime.executables import call_kernel

SEED = 7


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng(sum(map(ord, name)))
    return numpy_helper.from_array((rng.standard_normal(shape) / 4).astype("float32"), name)


def _function(path: Path, nodes, inputs, outputs, weights=()) -> Function:
    def infos(named):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in named.items()
        ]

    graph = helper.make_graph(nodes, "model", infos(inputs), infos(outputs), list(weights))
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path / "model.onnx")
    return import_model(path / "model.onnx", work_dir=path).functions[0]


def convolutions(path: Path) -> Function:
    """conv, relu, conv, add (of the first relu), softmax over channels."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=1),
    ]
    weights = [_weight("w1", 8, 3, 3, 3), _weight("b1", 8), _weight("w2", 8, 8, 3, 3)]
    return _function(path, nodes, {"x": (1, 3, 10, 10)}, {"y": (1, 8, 10, 10)}, weights)


def determinant(path: Path) -> Function:
    """relu, then an operator without support in OpenVINO."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Det", ["r"], ["y"])]
    return _function(path, nodes, {"x": (2, 3, 3)}, {"y": (2,)})


def check_region(backend: Backend, function: Function, nodes: int, variant: str = "") -> None:
    """Compile `nodes` and compare every output with the same model in ONNX Runtime."""
    from collage.frontend.region import region_onnx, region_values

    kernel = backend.compile(function, nodes, BuildContext(1), variant=variant)
    inputs, outputs = region_values(function, nodes)
    rng = np.random.default_rng(SEED)
    types = function.graph.types
    feeds = {name: rng.standard_normal(types[name].shape).astype("float32") for name in inputs}
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    expected = session.run(list(outputs), feeds)
    arrays = [np.zeros(types[name].shape, types[name].dtype) for name in outputs]
    call_kernel(kernel.kind, kernel.blob, list(feeds.values()), arrays)
    for value, reference in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5)

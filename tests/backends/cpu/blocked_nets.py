"""Nets for the blocked backend, compared with ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import BuildContext
from collage.backends.cpu.blocked import BlockedBackend
from collage.backends.cpu.blocked.program import Op
from collage.frontend import Function, import_model
from collage.frontend.region import region_onnx, region_values
from collage.runtime.blob import pack, unpack
from tests.runtime import executables

INSTRUCTIONS = ("avx512", "avx2", "plain")


class Net:
    """Writes a model node by node; every method returns the name of its result."""

    def __init__(self, x: tuple[int, ...], seed: int = 3) -> None:
        self.random = np.random.default_rng(seed)
        self.shapes = {"x": x}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        values = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def number(self, value: float) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def add(self, op: str, *inputs: str, **attributes) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], k=(1, 1), groups=1, bias=True, **attrs
    ) -> str:
        inner, out = channels
        size = (out, inner // groups, *k)
        inputs = [x, self.weight(*size, scale=float(np.prod(size[1:])) ** -0.5)]
        if bias:
            inputs.append(self.weight(out))
        return self.add("Conv", *inputs, group=groups, **attrs)

    def depthwise(self, x: str, channels: int, k: int, stride: int = 1, **attrs) -> str:
        attrs.setdefault("pads", [k // 2] * 4)
        return self.conv(
            x, (channels, channels), (k, k), channels, strides=[stride, stride], **attrs
        )

    def silu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def excited(self, x: str, channels: int, squeezed: int) -> str:
        mean = self.add("GlobalAveragePool", x)
        inner = self.silu(self.conv(mean, (channels, squeezed)))
        return self.add("Mul", x, self.add("Sigmoid", self.conv(inner, (squeezed, channels))))

    def function(self, path, *outputs: str) -> Function:
        def info(name, shape=None):
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        inputs = [info(name, shape) for name, shape in self.shapes.items()]
        graph = helper.make_graph(
            self.nodes, "model", inputs, [info(name) for name in outputs], self.weights
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.save(model, path / "model.onnx")
        return import_model(path / "model.onnx", work_dir=path).functions[0]


def steps_of(function: Function, nodes: int) -> list[Op]:
    header, _ = unpack(BlockedBackend().compile(function, nodes, BuildContext(1)).blob)
    return [Op(step[0]) for step in header["steps"]]


def run(function: Function, nodes: int, threads: int = 1, **header) -> list[np.ndarray]:
    entries, tensors = unpack(BlockedBackend().compile(function, nodes, BuildContext(threads)).blob)
    del entries["tensors"]
    inputs, outputs = region_values(function, nodes)
    feeds = feeds_of(function, inputs)
    arrays = [np.full(function.graph.types[name].shape, np.nan, np.float32) for name in outputs]
    blob = pack({**entries, **header}, tensors)
    executables.call_kernel("blocked", blob, list(feeds.values()), arrays)
    return arrays


def feeds_of(function: Function, inputs) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {n: random.standard_normal(function.graph.types[n].shape, np.float32) for n in inputs}


def check(function: Function, nodes: int = 0, threads: int = 1, **header) -> None:
    nodes = nodes or function.graph.everything
    inputs, _ = region_values(function, nodes)
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    reference = session.run(None, feeds_of(function, inputs))
    for computed, expected in zip(run(function, nodes, threads, **header), reference, strict=True):
        np.testing.assert_allclose(computed, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request, tmp_path):
    net = Net((1, 3, 5, 5))
    function = net.function(tmp_path, net.conv("x", (3, 2)))
    try:
        check(function, instructions=request.param)
    except ValueError as error:
        assert "this machine has no" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    return request.param

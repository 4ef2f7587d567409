"""Memory-bound regions of real models, by name."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.frontend import Function, import_model

OPSET = 20
DTYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


class BenchmarkRegion:
    """Builds a model operator by operator; every method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(7)

    def input(self, *shape: int, dtype: str = "float32") -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant((self._rng.standard_normal(shape) / 2).astype("float32"))

    def constant(self, value: np.ndarray | Sequence[int] | float) -> str:
        array = np.float32(value) if isinstance(value, float) else np.asarray(value)
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def op(self, kind: str, *operands: str, **attributes: object) -> str:
        return self.ops(kind, 1, *operands, **attributes)[0]

    def ops(self, kind: str, outputs: int, *operands: str, **attributes: object) -> list[str]:
        names = [f"v{len(self.nodes)}_{position}" for position in range(outputs)]
        self.nodes.append(helper.make_node(kind, operands, names, **attributes))
        return names

    def function(self, results: Sequence[str], folder: Path) -> Function:
        """Import the model that returns `results`."""
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph(self.nodes, "region", self.inputs, outputs, self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        )
        path = folder / "region.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return import_model(path, work_dir=folder).functions[0]


Build = Callable[[BenchmarkRegion], Sequence[str]]


def _gelu(r: BenchmarkRegion, x: str) -> str:
    half = r.op("Mul", x, r.constant(0.5))
    erf = r.op("Erf", r.op("Div", x, r.constant(2.0**0.5)))
    return r.op("Mul", half, r.op("Add", erf, r.constant(1.0)))


def _norm(r: BenchmarkRegion, x: str, size: int) -> str:
    return r.op("LayerNormalization", x, r.weight(size), r.weight(size), axis=-1)


def _bias_gelu(r: BenchmarkRegion) -> Sequence[str]:
    return [_gelu(r, r.op("Add", r.input(1, 128, 3072), r.weight(3072)))]


def _residual_norm(r: BenchmarkRegion) -> Sequence[str]:
    total = r.op("Add", r.op("Add", r.input(1, 128, 768), r.weight(768)), r.input(1, 128, 768))
    return [_norm(r, total, 768)]


def _residual_norm_both(r: BenchmarkRegion) -> Sequence[str]:
    total = r.op("Add", r.input(1, 128, 768), r.input(1, 128, 768))
    return [total, _norm(r, total, 768)]


def _masked_softmax(r: BenchmarkRegion) -> Sequence[str]:
    scores = r.op("Mul", r.input(1, 12, 128, 128), r.constant(0.125))
    return [r.op("Softmax", r.op("Add", scores, r.input(1, 1, 128, 128)), axis=-1)]


def _rms_norm(r: BenchmarkRegion) -> Sequence[str]:
    x = r.input(1, 128, 512)
    mean = r.op("ReduceMean", r.op("Mul", x, x), r.constant([-1]), keepdims=1)
    root = r.op("Sqrt", r.op("Add", mean, r.constant(1e-5)))
    return [r.op("Mul", r.op("Div", x, root), r.weight(512))]


def _swiglu(r: BenchmarkRegion) -> Sequence[str]:
    gate = r.input(1, 128, 1376)
    return [r.op("Mul", r.op("Mul", gate, r.op("Sigmoid", gate)), r.input(1, 128, 1376))]


def _residual_relu(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("Relu", r.op("Add", r.input(1, 64, 56, 56), r.input(1, 64, 56, 56)))]


def _silu_map(r: BenchmarkRegion) -> Sequence[str]:
    x = r.op("Add", r.input(1, 64, 64, 64), r.weight(1, 64, 1, 1))
    return [r.op("Mul", x, r.op("Sigmoid", x))]


def _squeeze_scale(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("Mul", r.input(1, 96, 56, 56), r.op("Sigmoid", r.input(1, 96, 1, 1)))]


def _hard_swish(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("HardSwish", r.input(1, 72, 56, 56))]


def _channels_last_norm(r: BenchmarkRegion) -> Sequence[str]:
    moved = r.op("Transpose", r.input(1, 96, 56, 56), perm=[0, 2, 3, 1])
    return [_norm(r, moved, 96)]


def _scaled_back(r: BenchmarkRegion) -> Sequence[str]:
    scaled = r.op("Mul", r.input(1, 56, 56, 96), r.weight(96))
    moved = r.op("Transpose", scaled, perm=[0, 3, 1, 2])
    return [r.op("Add", moved, r.input(1, 96, 56, 56))]


def _shuffle(r: BenchmarkRegion) -> Sequence[str]:
    split = r.op("Reshape", r.input(1, 232, 28, 28), r.constant([1, 2, 116, 28, 28]))
    moved = r.op("Transpose", split, perm=[0, 2, 1, 3, 4])
    return [r.op("Reshape", moved, r.constant([1, 232, 28, 28]))]


def _heads(r: BenchmarkRegion) -> Sequence[str]:
    x = r.op("Add", r.input(1, 128, 768), r.weight(768))
    split = r.op("Reshape", x, r.constant([1, 128, 12, 64]))
    return [r.op("Transpose", split, perm=[0, 2, 1, 3])]


def _keys(r: BenchmarkRegion) -> Sequence[str]:
    x = r.op("Add", r.input(1, 128, 768), r.weight(768))
    split = r.op("Reshape", x, r.constant([1, 128, 12, 64]))
    return [r.op("Transpose", split, perm=[0, 2, 3, 1])]


def _concat(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("Concat", r.input(1, 64, 56, 56), r.op("Relu", r.input(1, 32, 56, 56)), axis=1)]


def _max_pool(r: BenchmarkRegion) -> Sequence[str]:
    return [
        r.op("MaxPool", r.input(1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ]


def _average_pool(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("AveragePool", r.input(1, 192, 28, 28), kernel_shape=[3, 3], pads=[1] * 4)]


def _global_pool(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("GlobalAveragePool", r.input(1, 512, 28, 28))]


def _depthwise(
    r: BenchmarkRegion, channels: int, size: int, kernel: int, *, stride: int = 1
) -> str:
    x, weight, bias = r.input(1, channels, size, size), r.weight(channels, 1, kernel, kernel), ""
    bias = r.weight(channels)
    pads = [kernel // 2] * 4
    return r.op("Conv", x, weight, bias, pads=pads, group=channels, strides=[stride, stride])


def _depthwise_relu6(r: BenchmarkRegion) -> Sequence[str]:
    y = _depthwise(r, 96, 56, 3)
    return [r.op("Clip", y, r.constant(0.0), r.constant(6.0))]


def _depthwise_stride(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("Relu", _depthwise(r, 96, 112, 3, stride=2))]


def _depthwise_seven(r: BenchmarkRegion) -> Sequence[str]:
    return [_depthwise(r, 96, 56, 7)]


def _resize(r: BenchmarkRegion) -> Sequence[str]:
    sizes = r.constant([1, 64, 56, 56])
    return [r.op("Resize", r.input(1, 64, 28, 28), "", "", sizes, mode="linear")]


def _embedding(r: BenchmarkRegion) -> Sequence[str]:
    rows = r.op("Gather", r.weight(3000, 768), r.input(1, 128, dtype="int64"), axis=0)
    return [_norm(r, r.op("Add", rows, r.weight(1, 128, 768)), 768)]


def _channel_softmax(r: BenchmarkRegion) -> Sequence[str]:
    return [r.op("Softmax", r.input(1, 21, 64, 64), axis=1)]


REGIONS: dict[str, Build] = {
    "bias, gelu 128x3072": _bias_gelu,
    "bias, residual, layer norm 128x768": _residual_norm,
    "residual, layer norm, both out": _residual_norm_both,
    "scale, mask, softmax 12x128x128": _masked_softmax,
    "RMS norm 128x512": _rms_norm,
    "silu, gate 128x1376": _swiglu,
    "residual, relu 64x56x56": _residual_relu,
    "bias, silu 64x64x64": _silu_map,
    "squeeze scale 96x56x56": _squeeze_scale,
    "hard swish 72x56x56": _hard_swish,
    "to channels last, layer norm 96": _channels_last_norm,
    "scale, to channels first, add": _scaled_back,
    "channel shuffle 232x28x28": _shuffle,
    "bias, split heads 128x12x64": _heads,
    "bias, split keys 12x64x128": _keys,
    "concat, relu 96x56x56": _concat,
    "max pool 3 stride 2, 64x112x112": _max_pool,
    "average pool 3, 192x28x28": _average_pool,
    "global average pool 512x28x28": _global_pool,
    "depthwise 3, relu6, 96x56x56": _depthwise_relu6,
    "depthwise 3 stride 2, 96x112x112": _depthwise_stride,
    "depthwise 7, 96x56x56": _depthwise_seven,
    "bilinear 64x28x28 to 56x56": _resize,
    "embedding, layer norm 128x768": _embedding,
    "softmax over channels 21x64x64": _channel_softmax,
}


def make_region(build_region: Build, folder: Path) -> Function:
    region = BenchmarkRegion()
    return region.function(build_region(region), folder)

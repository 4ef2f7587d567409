"""Winograd convolutions against each library: `python -m benchmarks.winograd`.

Each row is one 3x3 convolution with bias and ReLU, batch 1, one thread. All kernels of a row run in turn,
so that a change of the machine's speed affects all of them; `cold` flushes the caches before each call, as
between the kernels of a model, `hot` does not. Times are medians in microseconds; GFLOP/s counts the
multiplications of the direct convolution, so Winograd's may exceed the peak of the core.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.region_comparison import compare_regions
from collage.backends.cpu.winograd import WinogradBackend
from collage.frontend import Function, import_model

LIBRARIES = ("onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A convolution: channels in and out, height and width of the image."""

    channels_in: int
    channels_out: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.channels_in}->{self.channels_out} {self.height}x{self.width}"


SHAPES = (
    ConvShape(64, 64, 56, 56), ConvShape(128, 128, 28, 28), ConvShape(256, 256, 14, 14), ConvShape(512, 512,
    7, 7), ConvShape(16, 16, 80, 160), ConvShape(24, 96, 48, 48), ConvShape(96, 24, 184, 184), ConvShape(32,
    32, 112, 112), ConvShape(96, 96, 16, 16), ConvShape(144, 144, 8, 8), ConvShape(64, 1, 64, 64),
    ConvShape(3, 64, 64, 64),
)  # fmt: skip
"""Shapes of ResNet-18, of text detectors and mobile networks, and odd ones."""


def function_of(shape: ConvShape, folder: Path) -> Function:
    """Return the function y = relu(conv(x) + bias)."""
    random = np.random.default_rng(0)
    size = (shape.channels_out, shape.channels_in, 3, 3)
    weights = (random.standard_normal(size) / np.sqrt(9 * shape.channels_in)).astype("float32")
    bias = random.standard_normal(shape.channels_out).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x = (1, shape.channels_in, shape.height, shape.width)
    graph = helper.make_graph(
        nodes, "convolution", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


def main() -> None:
    compare_regions(
        "Winograd's convolutions against the libraries'.",
        SHAPES,
        function_of,
        WinogradBackend.name,
        libraries=LIBRARIES,
    )


if __name__ == "__main__":
    main()

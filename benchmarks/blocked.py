"""Regions in blocked layout against each library's: `python -m benchmarks.blocked`.

Each row is a region of mobile networks, batch 1: a depthwise convolution with its activation, a pair of
expansion and depthwise convolution, or a whole inverted residual block with squeeze-and-excite. All kernels
of a row run in turn; `cold` flushes the caches before each call, `hot` does not. Times are medians in
microseconds; the ratio is the best library's time over ours.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.region_comparison import compare_regions
from collage.backends.cpu.blocked import BlockedBackend
from collage.frontend import Function, import_model

LIBRARIES = ("onnxruntime", "openvino", "onednn")


@dataclass(frozen=True, slots=True)
class Block:
    """An inverted residual block; without an expansion (0) only its depthwise convolution."""

    channels: int
    expanded: int
    side: int
    k: int = 3
    stride: int = 1
    squeezed: int = 0
    projects: bool = True

    def __str__(self) -> str:
        parts = f"{self.channels}x{self.side}x{self.side}"
        parts += f" to {self.expanded}" if self.expanded else ""
        parts += f" dw{self.k}/{self.stride}"
        return parts + " se" * bool(self.squeezed) + " project" * self.projects


BLOCKS = (
    Block(96, 0, 56, projects=False), Block(144, 0, 28, 5, projects=False),
    Block(672, 0, 14, 5, stride=2, projects=False),
    Block(16, 96, 112, stride=2, projects=False), Block(40, 240, 28, 5, projects=False),
    Block(16, 96, 112, stride=2, squeezed=4), Block(24, 144, 56, squeezed=6),
    Block(40, 240, 28, 5, squeezed=10), Block(112, 672, 14, 5, squeezed=28),
    Block(192, 1152, 7, 5, squeezed=48), Block(64, 384, 14), Block(37, 111, 23, 7),
)  # fmt: skip
"""Blocks of EfficientNet-B0 and MobileNetV2, and an odd one."""


class _Builder:
    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def convolution(self, x: str, shape: tuple[int, ...], **attributes: object) -> str:
        weights = self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        bias = self.random.standard_normal(shape[0])
        names = [f"w{len(self.nodes)}", f"b{len(self.nodes)}"]
        for name, values in zip(names, (weights, bias), strict=True):
            self.weights.append(numpy_helper.from_array(values.astype("float32"), name))
        return self.node("Conv", [x, *names], **attributes)

    def silu(self, x: str) -> str:
        return self.node("Mul", [x, self.node("Sigmoid", [x])])


def function_of(block: Block, folder: Path) -> Function:
    """Return the block with SiLU, and a residual where the shapes allow it."""
    net, width = _Builder(), block.expanded or block.channels
    x = "x"
    if block.expanded:
        x = net.silu(net.convolution(x, (width, block.channels, 1, 1)))
    x = net.silu(
        net.convolution(
            x, (width, 1, block.k, block.k), group=width, pads=[block.k // 2] * 4,
            strides=[block.stride] * 2,
        )
    )  # fmt: skip
    if block.squeezed:
        mean = net.node("GlobalAveragePool", [x])
        inner = net.silu(net.convolution(mean, (block.squeezed, width, 1, 1)))
        factors = net.node("Sigmoid", [net.convolution(inner, (width, block.squeezed, 1, 1))])
        x = net.node("Mul", [x, factors])
    if block.projects:
        x = net.convolution(x, (block.channels, width, 1, 1))
        x = net.node("Add", [x, "x"]) if block.stride == 1 else x
    shape = (1, block.channels, block.side, block.side)
    graph = helper.make_graph(
        net.nodes, "block", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)], net.weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return import_model(folder / "model.onnx", work_dir=folder).functions[0]


def main() -> None:
    compare_regions(
        "Regions in blocked layout against libraries.",
        BLOCKS,
        function_of,
        BlockedBackend.name,
        libraries=LIBRARIES,
    )


if __name__ == "__main__":
    main()

"""One small valid blob of every kind that runs on a CPU, with arguments that fit it.

Crafted and mutated blobs (`blob_cases`, `blob_fuzz`) begin with these.
"""

import functools
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from collage.backends.common.native_kernels import Activation, ActivationKind, by_panels
from collage.backends.cpu.blocked.program import (
    BlockedPostOp,
    BlockedProgramBuilder,
    BlockedStep,
    Filter,
    Op,
    PostOpKind,
    StepPart,
)
from collage.runtime.blob import pack, unpack
from tests.runtime import executables

Shape = tuple[int, ...]
Header = dict[str, Any]

C_SOURCE = """
int collage_kernel(const void* const* in, const void* const* constants, void* const* out) {
  const float *x = in[0], *w = constants[0];
  for (int i = 0; i < 4; ++i) ((float*)out[0])[i] = x[i] * w[i];
  return 0;
}
"""


@dataclass(frozen=True)
class Seed:
    """A blob, taken apart, and the shapes of the kernel's float32 arguments."""

    kind: str
    header: Header
    tensors: tuple[np.ndarray, ...]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]

    @property
    def blob(self) -> bytes:
        return pack(self.header, self.tensors)

    def with_header(self, **entries: Any) -> "Seed":
        """The same with other entries; None leaves one out."""
        header = {k: v for k, v in {**self.header, **entries}.items() if v is not None}
        return replace(self, header=header)


def _seed(kind: str, blob: bytes, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Seed:
    header, tensors = unpack(blob)
    del header["tensors"]
    return Seed(kind, dict(header), tuple(tensors), tuple(inputs), tuple(outputs))


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def blocked() -> Seed:
    """Every operator of the blocked kernel: a 3x3 convolution, squeeze and excite, an inverted residual."""
    relu = BlockedPostOp(PostOpKind.FUNCTION, Activation(ActivationKind.CLAMP, 0.0, 6.0))
    plain = (1, 1, 1, 1, 0, 0)
    square = Filter(_floats(8, 8, 1, 1), _floats(8), plain)
    shape, pixel = (1, 8, 6, 6), (1, 8, 1, 1)
    shapes = {
        "x": (1, 3, 12, 12), "a": shape, "d": shape, "m": pixel, "g": pixel, "p": shape,
        "e": (1, 40, 6, 6), "y": (1, 8, 6, 6), "n": pixel, "z": shape,
    }  # fmt: skip
    steps = [
        BlockedStep(Op.PRODUCT, "x", "a",
             (StepPart(Filter(_floats(8, 3, 3, 3), _floats(8), (2, 2, 1, 1, 1, 1)), (relu,)),)),
        BlockedStep(Op.DEPTHWISE, "a", "d",
             (StepPart(Filter(_floats(8, 1, 3, 3), _floats(8), (1, 1, 1, 1, 1, 1))),), mean="m"),
        BlockedStep(Op.PRODUCT, "m", "g",
             (StepPart(square, (BlockedPostOp(PostOpKind.MULTIPLY_CHANNEL, _floats(8)),)),)),
        BlockedStep(Op.PRODUCT, "d", "p",
             (StepPart(square, (BlockedPostOp(PostOpKind.ADD_VALUE, "a"),)),), scale="g"),
        BlockedStep(Op.EXPAND, "p", "e",
             (StepPart(Filter(_floats(40, 8, 1, 1), _floats(40), plain), (relu,)),
              StepPart(Filter(_floats(40, 1, 3, 3), _floats(40), (1, 1, 1, 1, 1, 1)))), mean=""),
        BlockedStep(Op.PRODUCT, "e", "y", (StepPart(Filter(_floats(8, 40, 1, 1), _floats(8), plain)),)),
        BlockedStep(Op.MEAN, "y", "n", (StepPart(None),)),
        BlockedStep(Op.ELEMENTWISE, "y", "z",
             (StepPart(None, (BlockedPostOp(PostOpKind.MULTIPLY_CHANNEL, "n"),
                              BlockedPostOp(PostOpKind.ADD_CHANNEL, _floats(8)))),)),
    ]  # fmt: skip
    blob = BlockedProgramBuilder(shapes).blob(steps, ["x"], ["z", "n"], {"threads": 2})
    return _seed("blocked", blob, [shapes["x"]], [shapes["z"], shapes["n"]])


def winograd() -> Seed:
    header = {
        "batch": 1, "channels_in": 5, "channels_out": 7, "height": 9, "width": 10,
        "out_height": 9, "out_width": 10, "pad_top": 1, "pad_left": 1, "threads": 2, "tile": 4,
        "transformed": 0, "inputs": 2, "residual": 1, "first": 1, "last": 3,
    }  # fmt: skip
    tensors = (by_panels(_floats(7, 5, 3, 3)), _floats(7), np.array([0, 6, 0, 0], np.float32))
    return Seed("winograd", header, tensors, ((1, 5, 9, 10), (1, 7, 9, 10)), ((1, 7, 9, 10),))


def onednn() -> Seed:
    """Convolution with posts, pooling, views, a matrix product, a concatenation, a softmax."""
    sides = {"strides": [1, 1], "dilations": [0, 0], "pads_begin": [1, 1], "pads_end": [1, 1]}
    values: list[list[int]] = [
        [1, 3, 8, 8], [16, 3, 3, 3], [16], [1, 16, 8, 8],  # x, weights, bias, convolved
        [1, 16, 1, 1], [1, 16, 4, 4], [16, 16], [16, 16],  # factor, pooled, as a matrix, turned
        [16, 4], [16, 4], [4, 4], [20, 4], [20, 4],  # right side, product, slice, both, softmax
    ]  # fmt: skip
    steps: list[Header] = [
        {"op": "convolution", "in": [0, 1, 2], "out": 3, **sides,
         "post": [{"eltwise": "relu", "alpha": 0.0, "beta": 0.0}, {"binary": "mul", "value": 4}]},
        {"op": "pooling", "in": [3], "out": 5, "post": [], "algorithm": "pooling_max",
         "strides": [2, 2], "kernel": [2, 2], "dilations": [0, 0], "pads_begin": [0, 0], "pads_end": [0, 0]},
        {"op": "reshape", "in": [5], "out": 6, "post": []},
        {"op": "permute", "in": [6], "out": 7, "post": [], "permutation": [1, 0]},
        {"op": "matmul", "in": [7, 8], "out": 9, "post": []},
        {"op": "slice", "in": [9], "out": 10, "post": [], "starts": [2, 0], "steps": [3, 1]},
        {"op": "concat", "in": [9, 10], "out": 11, "post": [], "axis": 0},
        {"op": "softmax", "in": [11], "out": 12, "post": [], "axis": 1, "algorithm": "softmax_accurate"},
    ]  # fmt: skip
    weights = [1, 2, 4, 8]
    header = {
        "threads": 2, "values": values, "inputs": [0], "outputs": [12], "weights": weights,
        "steps": steps,
    }  # fmt: skip
    tensors = tuple(_floats(*values[number]) for number in weights)
    return Seed("onednn", header, tensors, ((1, 3, 8, 8),), ((20, 4),))


def onnx(kind: str) -> Seed:
    model = executables.model(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 8)}, {"y": (1, 8)}
    )
    header: Header = {"threads": 1}
    if kind == "onnxruntime":
        header |= {"graph_optimization_level": "basic", "input_names": ["x"], "output_names": ["y"]}
    header["config"] = [] if kind == "openvino" else ["session.set_denormal_as_zero", "0"]
    return Seed(kind, header, (np.frombuffer(model, np.uint8),), ((1, 8),), ((1, 8),))


@functools.cache
def _image() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library],
            input=C_SOURCE.encode(),
            check=True,
        )
        return library.read_bytes()


def shared_library() -> Seed:
    vector = {"dtype": "float32", "shape": [4]}
    header: Header = {"inputs": 1, "libraries": [], "arguments": [vector, vector]}
    tensors = (np.frombuffer(_image(), np.uint8), _floats(4))
    return Seed("shared_library", header, tensors, ((4,),), ((4,),))


@functools.cache
def seeds() -> dict[str, Seed]:
    """By kind."""
    valid_seeds = [blocked(), winograd(), onednn(), onnx("onnxruntime"), onnx("openvino")]
    return {seed.kind: seed for seed in (*valid_seeds, shared_library())}

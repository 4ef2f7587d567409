"""Blobs that are not what they say, and what the error about each must name.

Where a case is about arguments, the blob is right and the kernel is called with something else.
"""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from collage.runtime.blob import ALIGNMENT, MAGIC, pack
from tests.runtime.blob_run import Case
from tests.runtime.blob_seeds import Seed, seeds

HUGE = 2**62
FLOATS = np.zeros(4, np.float32)


def raw(header: object, data: bytes = bytes(64), length: int | None = None) -> bytes:
    """Return a blob with this header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = MAGIC + struct.pack("<Q", len(text) if length is None else length) + text
    return start + bytes(-len(start) % ALIGNMENT) + data


def entry(**changes: Any) -> bytes:
    """Return a blob of kind "shared_library" with a false statement about its tensor."""
    right = {"dtype": "float32", "shape": [4], "offset": 0, "nbytes": 16}
    return raw({"inputs": 0, "arguments": [], "tensors": [right | changes]})


CONTAINERS: dict[str, tuple[bytes, str]] = {
    "nbytes below the shape": (entry(shape=[1_000_000]), "'nbytes' is 16"),
    "nbytes above the shape": (entry(shape=[1]), "'nbytes' is 16"),
    "shape that overflows to nbytes": (entry(shape=[2**32, 2**32, 4]), "64-bit number"),
    "negative extent": (entry(shape=[-4]), "extent of a tensor's 'shape' is -4"),
    "two negative extents": (entry(shape=[-2, -2]), "'shape' is -2"),
    "negative offset": (entry(offset=-64), "'offset' is -64"),
    "offset beside a multiple": (entry(offset=4), "'offset' is 4"),
    "offset at the end of the numbers": (entry(offset=2**63 - 64), "'offset' is"),
    "negative nbytes": (entry(nbytes=-16), "'nbytes' is -16"),
    "offset and nbytes behind the end": (entry(offset=64), "truncated"),
    "unknown dtype": (entry(dtype="floaty"), "dtype 'floaty'"),
    "empty dtype": (entry(dtype=""), "dtype ''"),
    "dtype of a pointer": (entry(dtype="handle"), "dtype 'handle'"),
    "dtype with lanes": (entry(dtype="float32x4"), "dtype 'float32x4'"),
    "dtype that is a number": (entry(dtype=5), "'dtype' .* wrong type"),
    "shape that is a text": (entry(shape="4"), "'shape' .* wrong type"),
    "offset that is a list": (entry(offset=[0]), "'offset' .* wrong type"),
    "tensors that is no list": (raw({"tensors": 3}), "'tensors' .* wrong type"),
    "tensor that is no object": (raw({"tensors": [3]}), "'tensors' .* wrong type"),
    "no tensors": (raw({}), "lacks 'tensors'"),
    "header that is a list": (raw([1]), "wrong type"),
    "header that is no JSON": (raw(b"{tensors"), "no JSON"),
    "empty header": (raw(b""), "no JSON"),
    "header longer than the blob": (raw({}, length=2**63), "truncated"),
    "header of all bits": (raw({}, length=2**64 - 1), "truncated"),
    "lists 30,000 deep": (raw(b"[" * 30_000), "nested"),
    "objects 1,000,000 deep": (raw(b'{"a":' * 1_000_000), "nested"),
    "depth behind a text with brackets": (raw(b'["\\"[[[", ' + b"[" * 100), "nested"),
    "threads 0": (pack({"threads": 0}, []), "'threads' is 0"),
    "threads negative": (pack({"threads": -3}, []), "'threads' is -3"),
    "threads that wrap to 1": (pack({"threads": 2**32 + 1}, []), "'threads' is 4294967297"),
    "threads a text": (pack({"threads": "2"}, []), "'threads' .* wrong type"),
}


def _step(number: int, at: int, value: int) -> Callable[[Seed], Seed]:
    """Put a number into a step of the blocked seed."""

    def change(seed: Seed) -> Seed:
        steps = [list(step) for step in seed.header["steps"]]
        steps[number][at] = value
        return seed.with_header(steps=steps)

    return change


def _value(number: int, shape: list[int]) -> Callable[[Seed], Seed]:
    def change(seed: Seed) -> Seed:
        values = [list(value) for value in seed.header["values"]]
        values[number] = shape
        return seed.with_header(values=values)

    return change


def _header(**entries: Any) -> Callable[[Seed], Seed]:
    return lambda seed: seed.with_header(**entries)


def _tensor(number: int, array: np.ndarray) -> Callable[[Seed], Seed]:
    def change(seed: Seed) -> Seed:
        tensors = [array if i == number else tensor for i, tensor in enumerate(seed.tensors)]
        return replace(seed, tensors=tuple(tensors))

    return change


# A product's step: operator, input, output, mean, scale, weights, bias, height, width, strides, dilations,
# pads, count of posts, then kind, operand and parameters of each.
OP, INPUT, OUTPUT, MEAN, SCALE, WEIGHTS, BIAS, HEIGHT, STRIDE, DILATION, PAD, POSTS = (
    0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15,
)  # fmt: skip
KIND, OPERAND, PARAMETERS = 16, 17, 18

BLOCKED: dict[str, tuple[Callable[[Seed], Seed], str]] = {
    "negative parameters of an activation": (_step(0, PARAMETERS, -1), "no parameters"),
    "parameters far below": (_step(0, PARAMETERS, -(2**40)), "no parameters"),
    "parameters that overflow": (_step(0, PARAMETERS, 2**63 - 1), "no parameters"),
    "parameters behind the table": (_step(0, PARAMETERS, 100), "no parameters"),
    "unknown activation": (_step(0, OPERAND, 8), "an activation is 8"),
    "unknown post": (_step(0, KIND, 5), "kind of a post is 5"),
    "unknown operator": (_step(0, OP, 5), "operator is 5"),
    "count of posts": (_step(0, POSTS, HUGE), "count of posts is"),
    "negative count of posts": (_step(0, POSTS, -1), "count of posts is -1"),
    "posts beyond the step": (_step(0, POSTS, 2), "ends too early"),
    "numbers behind the step": (_step(0, POSTS, 0), "more numbers"),
    "input of no value": (_step(0, INPUT, 100), "names no value"),
    "output of no value": (_step(0, OUTPUT, -1), "names no value"),
    "weights of no tensor": (_step(0, WEIGHTS, 1000), "names no tensor"),
    "weights of another step": (_step(0, WEIGHTS, 3), "do not fit"),
    "bias of another tensor": (_step(0, BIAS, 1), "do not fit"),
    "kernel without height": (_step(0, HEIGHT, 0), "of a window is 0"),
    "negative kernel": (_step(0, HEIGHT, -3), "of a window is -3"),
    "kernel that overflows": (_step(0, HEIGHT, 2**63 - 1), "of a window is"),
    "kernel of 2^31 - 1": (_step(0, HEIGHT, 2**31 - 1), "do not fit"),
    "stride 0": (_step(0, STRIDE, 0), "of a window is 0"),
    "negative stride": (_step(0, STRIDE, -2), "of a window is -2"),
    "dilation 0": (_step(0, DILATION, 0), "of a window is 0"),
    "negative pad": (_step(0, PAD, -1), "a pad is -1"),
    "pad far below": (_step(0, PAD, -(2**40)), "a pad is"),
    "pad that overflows": (_step(0, PAD, HUGE), "a pad is"),
    "negative pad of a depthwise convolution": (_step(1, PAD, -1), "a pad is -1"),
    "stride 0 of a depthwise convolution": (_step(1, STRIDE, 0), "of a window is 0"),
    "pads for which no memory is": (_step(1, PAD, 2**31 - 1), "no memory|size of a padded"),
    "mean of a product": (_step(0, MEAN, 3), "mean per channel"),
    "mean with many pixels": (_step(1, MEAN, 7), "mean per channel"),
    "scale with many pixels": (_step(3, SCALE, 1), "a scale has not"),
    "scale that is not made yet": (_step(3, SCALE, 8), "not made before"),
    "scale of a 3x3 convolution": (_step(0, SCALE, 3), "a scale has not|1x1"),
    "added value of another shape": (_step(3, OPERAND, 4), "post's operand"),
    "added constant": (_step(3, OPERAND, -1), "per channel"),
    "multiplied constant that is too small": (_step(2, OPERAND, -1), "per channel"),
    "multiplied constant of no tensor": (_step(2, OPERAND, -1000), "names no tensor"),
    "constant at the end of the numbers": (_step(2, OPERAND, -(2**63)), "names no tensor"),
    "expansion with a 3x3 kernel": (_step(4, HEIGHT, 3), "do not fit|1x1"),
    "expansion with pads": (_step(4, PAD, 1), "1x1"),
    "expansion with a stride": (_step(4, STRIDE, 2), "1x1"),
    "value that is made twice": (_step(5, OUTPUT, 1), "made twice"),
    "output over the input": (_step(0, OUTPUT, 0), "made twice"),
    "value without channels": (_value(1, [1, 0, 6, 6]), "extent of a value is 0"),
    "negative value": (_value(1, [1, 8, -6, -6]), "extent of a value is -6"),
    "value that overflows": (_value(1, [2**31 - 1] * 4), "64-bit number"),
    "value larger than memory": (_value(0, [1, 3, 2**24, 2**24]), "size of a value|no memory"),
    "value of three dimensions": (_value(1, [1, 8, 6]), "four dimensions"),
    "value that is no list": (_header(values=[1]), "'values' .* wrong type"),
    "value with fewer channels than its weights": (_value(1, [1, 8, 6, 6000]), "shape|do not fit"),
    "batch that grows": (_value(1, [2, 8, 6, 6]), "batch"),
    "channels that grow in a depthwise step": (_value(2, [1, 33, 6, 6]), "channels|shape"),
    "elementwise step between shapes": (_value(9, [1, 8, 7, 7]), "differ in shape"),
    "input of no value's number": (_header(inputs=[77]), "no value"),
    "output that nobody makes": (_header(outputs=[0, 1]), "not made before"),
    "rows of no value": (_header(rows=[-1]), "rows of no value"),
    "steps of texts": (_header(steps=[["a"]]), "'steps' .* wrong type"),
    "empty step": (_header(steps=[[]]), "ends too early"),
    "no steps": (_header(steps=None), "lacks 'steps'"),
    "weights in float16": (_tensor(1, np.zeros(2 * 864, np.float16)), "not float32|do not fit"),
    "parameters as int32": (_tensor(0, np.zeros(8, np.int32)), "not float32"),
    "unknown instructions": (_header(instructions="avx1024"), "has no avx1024"),
}

WINOGRAD: dict[str, tuple[Callable[[Seed], Seed], str]] = {
    "inputs 0": (_header(inputs=0), "'inputs' is 0"),
    "inputs negative": (_header(inputs=-1), "'inputs' is -1"),
    "inputs 3": (_header(inputs=3), "'inputs' is 3"),
    "residual below": (_header(residual=-2), "'residual' is -2"),
    "residual behind": (_header(residual=2), "'residual' is 2"),
    "second input that is no residual": (_header(residual=-1), "'residual' is -1"),
    "residual of another size": (_header(inputs=1, residual=0), "another size"),
    "channels_in 0": (_header(channels_in=0), "'channels_in' is 0"),
    "channels_out 0": (_header(channels_out=0), "'channels_out' is 0"),
    "batch 0": (_header(batch=0), "'batch' is 0"),
    "no batch": (_header(batch=None), "'batch' is 0"),
    "height 0": (_header(height=0), "'height' is 0"),
    "negative pad": (_header(pad_top=-1), "'pad_top' is -1"),
    "pad that overflows": (_header(pad_left=HUGE), "'pad_left' is"),
    "output larger than memory": (
        _header(out_height=2**31 - 1, out_width=2**31 - 1),
        "size of|number",
    ),
    "output of nothing": (_header(out_height=0), "'out_height' is 0"),
    "output that leaves pixels out": (_header(out_height=3), "leave pixels"),
    "channels that overflow": (
        _header(channels_in=2**31 - 1, batch=2**31 - 1),
        "64-bit|size of|fit",
    ),
    "more channels than weights": (_header(channels_in=6), "do not fit"),
    "more outputs than weights": (_header(channels_out=33), "do not fit"),
    "more outputs than bias": (_header(channels_out=8), "do not fit"),
    "tile 0": (_header(tile=0), "no tile 0"),
    "tile 2^32 + 2": (_header(tile=2**32 + 2), "no tile"),
    "unknown activation": (_header(first=8), "'first' is 8"),
    "negative activation": (_header(last=-1), "'last' is -1"),
    "weights said to be transformed": (_header(transformed=1), "do not fit"),
    "bias in int32": (_tensor(1, np.zeros(7, np.int32)), "do not fit"),
    "no parameters": (lambda seed: replace(seed, tensors=seed.tensors[:2]), "do not fit"),
}


def _onednn(number: int, **changes: Any) -> Callable[[Seed], Seed]:
    """Change a step of the oneDNN seed."""

    def change(seed: Seed) -> Seed:
        steps = [dict(step) for step in seed.header["steps"]]
        steps[number] |= changes
        return seed.with_header(steps=steps)

    return change


ONEDNN: dict[str, tuple[Callable[[Seed], Seed], str]] = {
    "convolution of one input": (_onednn(0, **{"in": [0]}), "it has 1 inputs"),
    "convolution of no input": (_onednn(0, **{"in": []}), "it has 0 inputs"),
    "too few strides": (_onednn(0, strides=[1]), "'strides' has 1 numbers"),
    "no pads": (_onednn(0, pads_end=[]), "'pads_end' has 0 numbers"),
    "stride 0": (_onednn(0, strides=[0, 1]), "'strides' is 0"),
    "negative pad": (_onednn(0, pads_begin=[-1, 1]), "'pads_begin' is -1"),
    "negative dilation": (_onednn(0, dilations=[-1, 0]), "'dilations' is -1"),
    "pad that overflows": (_onednn(0, pads_begin=[HUGE, 1]), "'pads_begin' is"),
    "operand that does not broadcast": (
        _onednn(0, post=[{"binary": "mul", "value": 2}]), "does not broadcast",
    ),
    "operand larger than the result": (
        _onednn(0, post=[{"binary": "mul", "value": 0}]), "does not broadcast",
    ),
    "operand of no value": (_onednn(0, post=[{"binary": "mul", "value": -1}]), "no value -1"),
    "algorithm of another kind": (
        _onednn(0, post=[{"eltwise": "add", "alpha": 0, "beta": 0}]), "onednn",
    ),
    "no algorithm": (_onednn(1, algorithm="pooling_most"), "no algorithm pooling_most"),
    "pooling without kernel": (_onednn(1, kernel=[0, 2]), "'kernel' is 0"),
    "pooling of half a kernel": (_onednn(1, kernel=[2]), "'kernel' has 1 numbers"),
    "permutation out of range": (_onednn(3, permutation=[1, 99]), "'permutation' is none"),
    "permutation far out of range": (_onednn(3, permutation=[1, 2**31]), "'permutation' is"),
    "negative permutation": (_onednn(3, permutation=[-1, 0]), "'permutation' is -1"),
    "permutation that repeats": (_onednn(3, permutation=[1, 1]), "'permutation' is none"),
    "permutation too long": (_onednn(3, permutation=[1, 0, 2]), "'permutation' has 3"),
    "slice that starts below": (_onednn(5, starts=[-1, 0]), "'starts' is -1"),
    "slice that leads out": (_onednn(5, starts=[12, 0]), "leads out"),
    "slice with a huge step": (_onednn(5, steps=[2**31 - 1, 1]), "leads out"),
    "slice with step 0": (_onednn(5, steps=[0, 1]), "'steps' is 0"),
    "slice without starts": (_onednn(5, starts=[]), "'starts' has 0"),
    "axis behind": (_onednn(6, axis=2), "'axis' is 2"),
    "axis that wraps": (_onednn(7, axis=2**32 + 1), "'axis' is"),
    "concatenation of nothing": (_onednn(6, **{"in": []}), "it has 0 inputs"),
    "unknown operator": (_onednn(4, op="sort"), "no such operator"),
    "view of nothing": (_onednn(2, **{"in": []}), "it has 0 inputs"),
    "step over its own input": (_onednn(4, out=7), "made already"),
    "step over a weight": (_onednn(4, out=8), "made already"),
    "reading what is made later": (_onednn(4, **{"in": [12, 8]}), "onednn"),
    "reshape to more": (_value(6, [16, 17]), "another number|shape"),
    "value without extents": (_value(0, []), "0 dimensions"),
    "value of 13 dimensions": (_value(0, [1] * 13), "13 dimensions"),
    "extent that oneDNN takes for any": (_value(0, [-(2**63), 3, 8, 8]), "extent of a value"),
    "extent 0": (_value(0, [0, 3, 8, 8]), "extent of a value is 0"),
    "value that overflows": (_value(0, [2**31 - 1] * 4), "64-bit number"),
    "weight of another size": (_value(8, [16, 5]), "bytes|onednn"),
    "weight in int32": (_tensor(3, np.zeros((16, 4), np.int32)), "not float32"),
    "more weights than tensors": (_header(weights=[1, 2, 4, 8, 8]), "5 weights, but 4 tensors"),
    "input of no value": (_header(inputs=[55]), "no value 55"),
    "output that nobody makes": (_header(outputs=[12, 12, 1]), "onednn|ran"),
    "step that is a list": (_header(steps=[[]]), "'steps' .* wrong type"),
    "unknown layout": (_header(layout="round"), "no layout round"),
    "unknown products": (_header(products="f8"), "multiply f8"),
}  # fmt: skip

OTHERS: dict[str, tuple[str, bytes, str]] = {
    "onnxruntime config of one text": (
        "onnxruntime", seeds()["onnxruntime"].with_header(config=["a"]).blob, "no pairs",
    ),
    "onnxruntime outputs without names": (
        "onnxruntime", seeds()["onnxruntime"].with_header(output_names=None).blob, "no 'output_names'",
    ),
    "onnxruntime name of nothing": (
        "onnxruntime", seeds()["onnxruntime"].with_header(input_names=["nope"]).blob, "nope",
    ),
    "onnxruntime config that names a folder": (
        "onnxruntime",
        seeds()["onnxruntime"].with_header(
            config=["session.model_external_initializers_file_folder_path", "/etc"]
        ).blob,
        "may not name files",
    ),
    "openvino config that names a folder": (
        "openvino", seeds()["openvino"].with_header(config=["CACHE_DIR", "/tmp/x"]).blob,
        "may not name files",
    ),
    "tensorrt options that name a library": (
        "tensorrt",
        pack({"provider_options": ["trt_extra_plugin_lib_paths", "/tmp/evil.so"]}, [FLOATS]),
        "may not name files",
    ),
    "openvino config of one text": (
        "openvino", seeds()["openvino"].with_header(config=["a"]).blob, "no pairs",
    ),
    "shared library with more inputs than arguments": (
        "shared_library", seeds()["shared_library"].with_header(inputs=3).blob, "'inputs' is 3",
    ),
    "shared library with negative inputs": (
        "shared_library", seeds()["shared_library"].with_header(inputs=-1).blob, "'inputs' is -1",
    ),
    "shared library by a path": (
        "shared_library",
        seeds()["shared_library"].with_header(libraries=["/lib/x86_64-linux-gnu/libm.so.6"]).blob,
        "is not installed",
    ),
    "on_host without a kernel": ("on_host", pack({"kind": "winograd"}, []), "holds no kernel"),
    "on_host with negative inputs": (
        "on_host", pack({"kind": "winograd", "inputs": -1}, [FLOATS]), "'inputs' is -1",
    ),
    "on_host in on_host": (
        "on_host",
        pack({"kind": "on_host", "inputs": 1}, [np.frombuffer(pack({}, []), np.uint8)]),
        "one of its own kind",
    ),
    "on_host with a kernel of a GPU": (
        "on_host",
        pack(
            {"kind": "cudnn", "inputs": 1},
            [np.frombuffer(
                pack({"operation": "softmax", "dtype": "float32", "x": [1, 2, 1], "y": [1, 2, 1]}, []),
                np.uint8,
            )],
        ),
        "needs a GPU",
    ),
    "cuda_library with negative scratch": (
        "cuda_library", pack({"inputs": 1, "scratch": -1}, [FLOATS]), "'scratch' is -1",
    ),
    "cuda_library with negative inputs": ("cuda_library", pack({"inputs": -1}, [FLOATS]), "'inputs' is -1"),
}  # fmt: skip

PRODUCT = {
    "dtype": "float32", "m": 2, "n": 3, "k": 4, "batch": 1, "inputs": 1, "left": 0, "right": 1,
}  # fmt: skip
CUBLAS: dict[str, tuple[dict[str, Any], str]] = {
    "negative extent": ({"m": -2}, "'m' is -2"),
    "extent 0": ({"k": 0}, "'k' is 0"),
    "batch that overflows": ({"batch": 2**31 - 1, "left_stride": 2**46}, "64-bit number"),
    "negative stride": ({"left_stride": -1}, "a stride is -1"),
    "constant that is too small": ({"n": 4}, "do not fit"),
    "no left side": ({"left": -1}, "no operand -1"),
    "no right side": ({"right": None}, "no operand -1"),
    "operand behind": ({"left": 2}, "no operand 2"),
    "operand far below": ({"bias": -(2**62)}, "no operand"),
    "negative inputs": ({"inputs": -1}, "'inputs' is -1"),
    "alpha no number": ({"alpha": "much"}, "'alpha' is 'much'"),
    "negative rank": ({"rank": -1}, "'rank' is -1"),
    "rank without end": ({"rank": 2**31}, "'rank' is"),
    "negative workspace": ({"workspace": -1}, "'workspace' is -1"),
    "dtype of no product": ({"dtype": "int8"}, "dtype int8"),
}
POOLING = {
    "operation": "pooling", "dtype": "float32", "x": [1, 2, 4, 4], "y": [1, 2, 2, 2],
    "window": [2, 2], "strides": [2, 2], "pads": [0, 0],
}  # fmt: skip
CUDNN: dict[str, tuple[dict[str, Any], str]] = {
    "no extents": ({"x": []}, "rank of 'x' is 0"),
    "negative extent": ({"x": [1, -2, 4, 4]}, "'x' is -2"),
    "extents that overflow": ({"y": [2**31, 2**31, 2**31]}, "64-bit number"),
    "extents that wrap to int": ({"x": [1, 2**32 + 1, 4, 4]}, "size of 'x'"),
    "window of one side": ({"window": [2]}, "'window' has 1 numbers"),
    "stride 0": ({"strides": [0, 1]}, "'strides' is 0"),
    "negative pad": ({"pads": [-1, 0]}, "'pads' is -1"),
    "ranks that differ": ({"y": [1, 2, 2]}, "differ in rank"),
    "softmax between shapes": ({"operation": "softmax"}, "'x' and 'y' differ"),
    "no operation": ({"operation": "sort"}, "no operation 'sort'"),
}
GRAPH_VALUE = {
    "role": "input", "dtype": "float32", "shape": [1, 4, 4], "strides": [16, 4, 1], "place": 0,
}  # fmt: skip
GRAPH: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "negative extent": ({"shape": [1, -4, 4]}, {}, "extent of a value is -4"),
    "negative stride": ({"strides": [16, -4, 1]}, {}, "stride of a value is -4"),
    "size that overflows": (
        {"shape": [1, 2**31 - 1, 4], "strides": [1, 2**46, 1]},
        {},
        "64-bit number",
    ),
    "fewer strides": ({"strides": [1]}, {}, "3 extents and 1 strides"),
    "place behind": ({"place": 1}, {}, "no argument 1"),
    "negative place": ({"place": -1}, {}, "'place' is -1"),
    "constant that is not there": ({"role": "constant"}, {}, "no tensor 0"),
    "negative inputs": ({}, {"inputs": -1}, "'inputs' is -1"),
    "no outputs": ({}, {"outputs": 0}, "'outputs' is 0"),
    "negative workspace": ({}, {"workspace": -1}, "'workspace' is -1"),
}

ARGUMENTS: dict[str, tuple[Callable[[Case], Case], str]] = {
    "int32 for float32": (lambda c: replace(c, dtypes={0: "int32"}), "float32|int32|type|INT32|f32"),
    "float64 for float32": (lambda c: replace(c, dtypes={0: "float64"}), "float|double|type|f64"),
    "output in int32": (
        lambda c: replace(c, dtypes={len(c.inputs): "int32"}), "float32|int32|type|INT32|i32",
    ),
    "input that is too small": (lambda c: replace(c, inputs=((1, 1), *c.inputs[1:])), "."),
    "output that is too small": (lambda c: replace(c, outputs=((1, 1), *c.outputs[1:])), "."),
    "empty output": (lambda c: replace(c, outputs=((0,), *c.outputs[1:])), "."),
    "input with strides": (
        lambda c: replace(c, inputs=((int(np.prod(c.inputs[0])),), *c.inputs[1:]), strided=frozenset({0})),
        "not contiguous",
    ),
    "one argument fewer": (lambda c: replace(c, outputs=c.outputs[1:]), "expected"),
    "one argument more": (lambda c: replace(c, outputs=(*c.outputs, (1,))), "expected"),
    "no arguments": (lambda c: replace(c, inputs=(), outputs=()), "expected"),
}  # fmt: skip


def seed_case(name: str, seed: Seed) -> Case:
    """Return the case of a seed or of a changed seed, with the seed's arguments."""
    return Case(name, seed.kind, seed.blob, seed.inputs, seed.outputs)


def expected() -> Iterator[tuple[Case, str]]:
    """Yield every crafted blob with the pattern of its error."""
    valid_seeds = seeds()
    for name, (blob, message) in CONTAINERS.items():
        yield Case(f"container: {name}", "shared_library", blob), message
    for kind, table in (("blocked", BLOCKED), ("winograd", WINOGRAD), ("onednn", ONEDNN)):
        for name, (change, message) in table.items():
            yield seed_case(f"{kind}: {name}", change(valid_seeds[kind])), message
    for name, (kind, blob, message) in OTHERS.items():
        yield (
            Case(
                name,
                kind,
                blob,
                runs=name == "onnxruntime name of nothing",
                inputs=((1, 8),),
                outputs=((1, 8),),
            ),
            message,
        )
    for name, (changes, message) in CUBLAS.items():
        header = {k: v for k, v in {**PRODUCT, **changes}.items() if v is not None}
        yield (
            Case(f"cublaslt: {name}", "cublaslt", pack(header, [np.zeros((4, 3), np.float32)])),
            message,
        )
    for name, (changes, message) in CUDNN.items():
        yield Case(f"cudnn: {name}", "cudnn", pack({**POOLING, **changes}, [])), message
    for name, (changes, extra, message) in GRAPH.items():
        header = {
            "inputs": 1,
            "outputs": 1,
            **extra,
            "graphs": [],
            "values": [{**GRAPH_VALUE, **changes}],
        }
        yield Case(f"cudnn graph: {name}", "cudnn", pack(header, [])), message
    for seed in valid_seeds.values():
        for name, (alter, message) in ARGUMENTS.items():
            yield alter(seed_case(f"{seed.kind}: {name}", seed)), message


def cases() -> Iterator[Case]:
    """Yield the valid seeds, then all invalid blobs."""
    for seed in seeds().values():
        yield seed_case(f"{seed.kind}: as it is", seed)
    for case, _ in expected():
        yield case

"""oneDNN: every operator computes what ONNX Runtime does, alone and fused; every refusal says why."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from collage.backends.cpu import onednn as backend
from collage.backends.cpu.onednn import OneDnnBackend
from collage.errors import BackendError
from collage.frontend.region import region_onnx, region_values
from collage.runtime import plugin
from collage.runtime.blob import unpack
from tests.backends import regions
from tests.frontend.build import floats, imported, integers, model
from tests.runtime.executables import call_kernel

BACKEND = OneDnnBackend()
IMAGE, ROWS = (2, 16, 9, 11), (2, 3, 5, 8)


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def make(folder, nodes, shapes, weights=None, opset=20, outputs=("y",), dtype="float32"):
    inputs = {name: (dtype, shape) for name, shape in shapes.items()}
    return imported(model(nodes, inputs, outputs, weights, opset), folder)


def check(function, nodes=None, variant="", positive=False):
    """Compare with ONNX Runtime; return the kernel's steps."""
    nodes = function.graph.everything if nodes is None else nodes
    inputs, outputs = region_values(function, nodes)
    types = function.graph.types
    feeds = {name: floats(*types[name].shape, seed=len(name)) for name in inputs}
    if positive:
        feeds = {name: np.abs(value) + np.float32(0.1) for name, value in feeds.items()}
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    expected = session.run(list(outputs), feeds)
    kernel = BACKEND.compile(function, nodes, 1, variant)
    found = [np.full(types[name].shape, np.nan, "float32") for name in outputs]
    call_kernel(kernel.kind, kernel.blob, list(feeds.values()), found)
    for value, reference in zip(found, expected, strict=True):
        scale = np.abs(reference).max()
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-5 * scale)
    return unpack(kernel.blob)[0]["steps"]


def convolution(weight, shape=IMAGE, bias=True, op="Conv", **attributes):
    channels = weight[0] if op == "Conv" else weight[1] * attributes.get("group", 1)
    weights = {"w": floats(*weight, seed=1) / 4, "b": floats(channels, seed=2)}
    names = ["x", "w", "b"] if bias else ["x", "w"]
    return [node(op, names, **attributes)], {"x": shape}, weights


def one(op, *shapes, weights=None, **attributes):
    """One node that reads inputs of `shapes`, then `weights`."""
    names = [f"x{number}" for number in range(len(shapes))]
    made = node(op, [*names, *(weights or {})], **attributes)
    return [made], dict(zip(names, shapes, strict=True)), weights


def number(value):
    return {"c": np.float32(value)}


UP = {"none": np.zeros(0, "float32"), "s": np.array([1, 1, 2, 3], "float32")}
SIZE = {
    "none": np.zeros(0, "float32"),
    "empty": np.zeros(0, "float32"),
    "n": integers(2, 16, 13, 17),
}
LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
RIM = integers(0, 0, 1, 2, 0, 0, 0, 1)
OPERATORS = {
    "conv 3x3": convolution((32, 16, 3, 3), pads=[1, 1, 1, 1]),
    "conv without bias": convolution((8, 16, 1, 1), bias=False),
    "conv with strides and uneven pads": convolution((8, 16, 3, 3), pads=[0, 1, 2, 1], strides=[2, 3]),
    "conv whose last window leaves a pixel over": convolution((8, 16, 2, 2), strides=[2, 3]),
    "conv with dilations": convolution((8, 16, 3, 3), dilations=[2, 3]),
    "conv with groups": convolution((32, 4, 3, 3), group=4),
    "depthwise conv": convolution((16, 1, 3, 3), group=16, pads=[1, 1, 1, 1]),
    "conv SAME_LOWER": convolution((8, 16, 4, 4), auto_pad="SAME_LOWER", strides=[2, 2]),
    "conv SAME_UPPER": convolution((8, 16, 4, 4), auto_pad="SAME_UPPER"),
    "conv of one dimension": convolution((8, 16, 3), (2, 16, 20)),
    "conv of three dimensions": convolution((8, 4, 3, 3, 3), (1, 4, 5, 6, 7)),
    "transposed conv": convolution((16, 8, 3, 3), op="ConvTranspose", strides=[2, 2]),
    "transposed conv with output pads": convolution(
        (16, 8, 3, 3), op="ConvTranspose", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
    ),
    "transposed conv with groups": convolution((16, 4, 2, 2), op="ConvTranspose", group=4),
    "MatMul with a matrix": one("MatMul", ROWS, weights={"w": floats(8, 6)}),
    "MatMul of batches": one("MatMul", ROWS, (2, 3, 8, 4)),
    "MatMul of broadcast batches": one("MatMul", ROWS, (3, 8, 4)),
    "MatMul of two inputs": one("MatMul", (5, 8), (8, 4)),
    "Gemm": one("Gemm", (5, 8), weights={"w": floats(8, 6), "b": floats(6)}),
    "Gemm with transB and factors": one(
        "Gemm", (5, 8), weights={"w": floats(6, 8), "b": floats(1, 6)}, transB=1, alpha=0.5, beta=2.0
    ),
    "Gemm with a summand per row": one("Gemm", (5, 8), weights={"w": floats(8, 6), "b": floats(5, 1)}),
    "Gemm without summand": one("Gemm", (5, 8), weights={"w": floats(8, 6)}),
    "MaxPool": one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "MaxPool with ceil": one("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "MaxPool with dilations": one("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
    "AveragePool": one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "AveragePool with pads counted": one(
        "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "AveragePool beyond the end": one(
        "AveragePool", IMAGE, kernel_shape=[64, 64], strides=[64, 64], ceil_mode=1
    ),
    "GlobalAveragePool": one("GlobalAveragePool", IMAGE),
    "GlobalMaxPool": one("GlobalMaxPool", IMAGE),
    "Softmax": one("Softmax", ROWS),
    "Softmax over channels": one("Softmax", IMAGE, axis=1),
    "LogSoftmax": one("LogSoftmax", ROWS, axis=2),
    "LayerNormalization": one("LayerNormalization", ROWS, weights={"s": floats(8), "b": floats(8)}),
    "LayerNormalization without bias": one(
        "LayerNormalization", ROWS, weights={"s": floats(5, 8)}, axis=-2, epsilon=0.01
    ),
    "LRN": one("LRN", IMAGE, size=5, alpha=0.02, beta=0.6, bias=2.0),
    "ReduceMean over the image": one("ReduceMean", IMAGE, weights={"a": integers(2, 3)}),
    "ReduceMean of rows": one("ReduceMean", ROWS, weights={"a": integers(-1)}, keepdims=0),
    "ReduceSum": one("ReduceSum", ROWS, weights={"a": integers(1, 3)}),
    "ReduceMax": one("ReduceMax", ROWS),
    "ReduceMin": one("ReduceMin", ROWS, weights={"a": integers(0)}),
    "ReduceProd": one("ReduceProd", ROWS, weights={"a": integers(2)}),
    "Concat": one("Concat", ROWS, (2, 4, 5, 8), axis=1),
    "Transpose": one("Transpose", ROWS, perm=[2, 0, 3, 1]),
    "Transpose by default": one("Transpose", ROWS),
    "Reshape": one("Reshape", ROWS, weights={"n": integers(6, -1)}),
    "Slice": one("Slice", ROWS, weights={
        "s": integers(1, -3), "e": integers(9, -1), "a": integers(1, 3)}),
    "Slice in steps": one("Slice", ROWS, weights={
        "s": integers(1, -7), "e": integers(9, 9), "a": integers(1, 3), "t": integers(2, 2)}),
    "Gather one row": one("Gather", ROWS, weights={"i": integers(-1).reshape(())}, axis=2),
    "Gather rows": one("Gather", ROWS, weights={"i": integers(1, 2, 3, 4).reshape(2, 2)}, axis=3),
    "Gather every second": one("Gather", ROWS, weights={"i": integers(0, 2, 4)}, axis=3),
    "Pad": one("Pad", IMAGE, weights={"p": RIM}),
    "Pad by a number": one("Pad", ROWS, weights={
        "p": integers(0, 1, 0, 2), "n": np.float32(-1.5), "a": integers(1, -1)}),
    "Expand": one("Expand", (2, 1, 5), weights={"n": integers(2, 3, 5)}),
    "Expand to itself": one("Expand", (2, 5), weights={"n": integers(2, 1)}),
    "Resize by whole factors": one("Resize", IMAGE, weights=UP, **FLOOR),
    "Resize, nearest by default": one("Resize", IMAGE, weights=UP),
    "Resize, linear": one("Resize", IMAGE, weights=UP, **LINEAR),
    "Resize to a size": one("Resize", IMAGE, weights=SIZE, **LINEAR),
    "Abs": one("Abs", ROWS), "Elu": one("Elu", ROWS, alpha=0.7), "Exp": one("Exp", ROWS),
    "Gelu": one("Gelu", ROWS), "Gelu by tanh": one("Gelu", ROWS, approximate="tanh"),
    "HardSigmoid": one("HardSigmoid", ROWS, alpha=0.3, beta=0.4),
    "HardSwish": one("HardSwish", ROWS), "LeakyRelu": one("LeakyRelu", ROWS, alpha=0.2),
    "Mish": one("Mish", ROWS), "Neg": one("Neg", ROWS), "Relu": one("Relu", ROWS),
    "Round": one("Round", ROWS), "Sigmoid": one("Sigmoid", ROWS), "Softplus": one("Softplus", ROWS),
    "Tanh": one("Tanh", ROWS), "Reciprocal": one("Reciprocal", ROWS),
    "Clip": one("Clip", ROWS, weights={"low": np.float32(-0.5), "high": np.float32(0.7)}),
    "Pow 2": one("Pow", ROWS, weights=number(2)), "Pow 3": one("Pow", ROWS, weights=number(3)),
    "Add a number": one("Add", ROWS, weights=number(2)),
    "Sub a number": one("Sub", ROWS, weights=number(2)),
    "Mul by a number": one("Mul", ROWS, weights=number(3)),
    "Div by a number": one("Div", ROWS, weights=number(3)),
    "Max with a number": one("Max", ROWS, weights=number(0.1)),
    "Min with a number": one("Min", ROWS, weights=number(0.1)),
    "Add": one("Add", ROWS, ROWS), "Sub": one("Sub", ROWS, ROWS), "Mul": one("Mul", ROWS, ROWS),
    "Max": one("Max", ROWS, ROWS), "Min": one("Min", ROWS, ROWS), "Div": one("Div", ROWS, ROWS),
    "Add of a tensor to itself": ([node("Add", "xx")], {"x": ROWS}, None),
    "Add a row": one("Add", ROWS, weights={"w": floats(8)}),
    "Mul by a channel": one("Mul", IMAGE, weights={"w": floats(16, 1, 1)}),
    "Mul by a column": one("Mul", ROWS, (2, 3, 5, 1)),
    "a smaller tensor less a larger one": one("Sub", (5, 8), ROWS),
    "a smaller tensor over a larger one": one("Div", (5, 8), ROWS),
    "Flatten": one("Flatten", ROWS), "Identity": one("Identity", ROWS),
    "Unsqueeze": one("Unsqueeze", ROWS, weights={"a": integers(0)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_the_same(name, tmp_path):
    nodes, shapes, weights = OPERATORS[name]
    function = make(tmp_path, nodes, shapes, weights)
    if not function.graph.nodes:
        pytest.skip("import removes it")
    assert BACKEND.unsupported(function, 0) is None
    check(function)


@pytest.mark.parametrize(
    "case",
    [one("Sqrt", ROWS), one("Log", ROWS), one("Pow", ROWS, weights=number(0.5)),
     one("Pow", ROWS, weights=number(-1.5)), one("Div", ROWS, (5, 8)),
     ([node("Div", "cx")], {"x": ROWS}, number(2))],
    ids=["Sqrt", "Log", "Pow 0.5", "Pow -1.5", "Div", "a number over a tensor"],
)  # fmt: skip
def test_operators_of_positive_numbers(case, tmp_path):
    check(make(tmp_path, *case), positive=True)


def test_batch_normalization_is_a_factor_and_a_summand(tmp_path):
    weights = {name: np.abs(floats(16, seed=n)) + 0.5 for n, name in enumerate("sbmv")}
    nodes = [node("BatchNormalization", ["x", *"sbmv"], ["n"]), node("Relu", ["n"])]
    steps = check(make(tmp_path, nodes, {"x": IMAGE}, weights))
    assert [step["op"] for step in steps] == ["binary"]


def test_split_has_several_outputs(tmp_path):
    nodes = [node("Split", ["x", "n"], ["a", "b"], axis=1)]
    weights = {"n": integers(1, 2)}
    check(make(tmp_path, nodes, {"x": ROWS}, weights, outputs=("a", "b")))


def test_upsample(tmp_path):
    nodes = [node("Upsample", ["x", "s"])]
    scales = {"s": np.array([1, 1, 2, 2], "float32")}
    check(make(tmp_path, nodes, {"x": IMAGE}, scales, opset=9))


REFUSALS = {
    "has no Erf": one("Erf", ROWS),
    "the weight 'x1' is no constant": one("Conv", IMAGE, (8, 16, 3, 3)),
    "over 4 dimensions": one("MaxPool", (1, 2, 3, 4, 5, 6), kernel_shape=[1, 1, 1, 1]),
    "has rank 7": one("Relu", (1, 2, 1, 2, 1, 2, 1)),
    "is empty": one("Relu", (0, 2)),
    "MatMul with a vector": one("MatMul", (8,), (8, 4)),
    "Gemm with transA": one("Gemm", (8, 5), weights={"w": floats(8, 6)}, transA=1),
    "beta and a computed summand": (
        [node("Gemm", "xwz", beta=2.0)], {"x": (5, 8), "z": (5, 6)}, {"w": floats(8, 6)}),
    "the right matrix 'x1' is no constant": one("Gemm", (5, 8), (8, 6)),
    "whose second output is used": (
        [node("MaxPool", "x", "yz", kernel_shape=[2, 2])], {"x": IMAGE}, None),
    "that counts the pads": one(
        "AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=1),
    "mean or deviation is used": (
        [node("LayerNormalization", "xs", "yz")], {"x": ROWS}, {"s": floats(8)}),
    "a broadcast scale": one("LayerNormalization", ROWS, weights={"s": floats(1)}),
    "bounds of Clip are computed": one("Clip", ROWS, ()),
    "exponent of Pow is no constant": one("Pow", ROWS, ROWS),
    "all operands are broadcast": one("Add", (5, 1), (1, 8)),
    "has 3 operands": one("Max", ROWS, ROWS, ROWS),
    "steps below 1": one("Slice", ROWS, weights={
        "s": integers(9), "e": integers(0), "a": integers(3), "t": integers(-2)}),
    "leads out of the tensor": one("Slice", ROWS, weights={
        "s": integers(0), "e": integers(9), "a": integers(2), "t": integers(2)}),
    "do not ascend at one distance": one("Gather", ROWS, weights={"i": integers(0, 1, 3)}, axis=3),
    "that do not ascend": one("Gather", ROWS, weights={"i": integers(1, 0)}, axis=3),
    "in mode reflect": one("Pad", IMAGE, weights={"n": RIM}, mode="reflect"),
    "a number that is computed": (
        [node("Pad", "xpn")], {"x": IMAGE, "n": ()}, {"p": RIM}),
    "by less than nothing": one("Pad", IMAGE, weights={"p": -RIM}),
    "by more than the tensor holds": one("Pad", IMAGE, weights={"p": 9 * RIM}),
    "Expand from": one("Expand", (1, 1), weights={"n": integers(3, 4)}),
    "factor that is not whole": one("Resize", IMAGE, weights=SIZE, mode="nearest"),
    "in mode cubic": one("Resize", IMAGE, weights=UP, mode="cubic"),
    "with other coordinates than half_pixel": one(
        "Resize", IMAGE, weights=UP, mode="linear", coordinate_transformation_mode="align_corners"),
    "with asymmetric and ceil": one(
        "Resize", IMAGE, weights=UP, nearest_mode="ceil", coordinate_transformation_mode="asymmetric"),
    "with antialias": one("Resize", IMAGE, weights=UP, antialias=1, **LINEAR),
    "that the sizes do not have exactly": one("Resize", IMAGE, weights={
        "none": np.zeros(0, "float32"), "s": np.array([1, 1, 1.9, 2], "float32")}, **LINEAR),
    "output_shape": convolution((16, 8, 3, 3), op="ConvTranspose", output_shape=[12, 14]),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason, tmp_path):
    nodes, shapes, weights = REFUSALS[reason]
    outputs = tuple(name for name in nodes[0].output)
    function = make(tmp_path, nodes, shapes, weights, outputs=outputs)
    assert reason in (BACKEND.unsupported(function, 0) or "")
    with pytest.raises(BackendError):
        BACKEND.compile(function, 1, threads=1)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64"])
def test_other_numbers_are_refused(dtype, tmp_path):
    function = make(tmp_path, [node("Transpose", "x")], {"x": ROWS}, dtype=dtype)
    assert BACKEND.unsupported(function, 0) == f"only float32 is computed, and 'y' is {dtype}"


def test_an_old_softmax_over_several_dimensions_is_refused(tmp_path):
    function = make(tmp_path, [node("Softmax", "x", axis=1)], {"x": ROWS}, opset=11)
    assert "of opset 11 over several dimensions" in (BACKEND.unsupported(function, 0) or "")


def test_shapes_that_depend_on_data_are_refused(tmp_path):
    nodes = [node("NonZero", "x", "n"), node("Cast", "n", "f", to=1), node("Relu", "f")]
    function = make(tmp_path, nodes, {"x": ROWS})
    assert "depends on data" in (BACKEND.unsupported(function, len(function.graph) - 1) or "")


def test_an_unknown_variant_is_refused(tmp_path):
    with pytest.raises(BackendError, match="no variant 'fast'"):
        BACKEND.compile(regions.convolutions(tmp_path), 1, threads=1, variant="fast")


def test_versions_are_part_of_the_identity():
    assert BACKEND.identity == f"onednn onednn={plugin.library_version('onednn')}"


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.delenv("COLLAGE_LIB_ONEDNN", raising=False)
    absent = plugin.Library("not-installed", "libdnnl.so.3", "onednn-cpu-gomp==2023.2.0")
    monkeypatch.setitem(plugin.LIBRARIES, "onednn", absent)
    found = BACKEND.availability()
    assert not found.available
    assert "pip install 'onednn-cpu-gomp==2023.2.0'" in found.reason


def test_a_plugin_built_without_onednn_is_reported(monkeypatch):
    backend._plugin_reason.cache_clear()
    monkeypatch.setattr(backend, "KERNEL_KIND", "onednn_absent")
    try:
        assert "no kernel of kind 'onednn_absent' in this build" in BACKEND.availability().reason
    finally:
        backend._plugin_reason.cache_clear()

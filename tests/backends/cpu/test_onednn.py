"""oneDNN: operators agree with ONNX Runtime, alone and fused; refusals have a reason."""

import numpy as np
import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu import onednn as backend
from collage.errors import BackendError
from collage.runtime import plugin
from tests.backends import regions
from tests.backends.cpu.onednn_nets import BACKEND, IMAGE, ROWS, check, make, node, number
from tests.frontend.build import floats, integers


def convolution(weight, shape=IMAGE, bias=True, op="Conv", **attributes):
    channels = weight[0] if op == "Conv" else weight[1] * attributes.get("group", 1)
    weights = {"w": floats(*weight, seed=1) / 4, "b": floats(channels, seed=2)}
    names = ["x", "w", "b"] if bias else ["x", "w"]
    return [node(op, names, **attributes)], {"x": shape}, weights


def call(op, *shapes, weights=None, **attributes):
    """Return one node with inputs of `shapes`, then `weights`."""
    names = [f"x{number}" for number in range(len(shapes))]
    single = node(op, [*names, *(weights or {})], **attributes)
    return [single], dict(zip(names, shapes, strict=True)), weights


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
    "MatMul with a matrix": call("MatMul", ROWS, weights={"w": floats(8, 6)}),
    "MatMul of batches": call("MatMul", ROWS, (2, 3, 8, 4)),
    "MatMul of broadcast batches": call("MatMul", ROWS, (3, 8, 4)),
    "MatMul of two inputs": call("MatMul", (5, 8), (8, 4)),
    "Gemm": call("Gemm", (5, 8), weights={"w": floats(8, 6), "b": floats(6)}),
    "Gemm with transB and factors": call(
        "Gemm", (5, 8), weights={"w": floats(6, 8), "b": floats(1, 6)}, transB=1, alpha=0.5, beta=2.0
    ),
    "Gemm with a summand per row": call("Gemm", (5, 8), weights={"w": floats(8, 6), "b": floats(5, 1)}),
    "Gemm without summand": call("Gemm", (5, 8), weights={"w": floats(8, 6)}),
    "MaxPool": call("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "MaxPool with ceil": call("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "MaxPool with dilations": call("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
    "AveragePool": call("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "AveragePool with pads counted": call(
        "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "AveragePool beyond the end": call(
        "AveragePool", IMAGE, kernel_shape=[64, 64], strides=[64, 64], ceil_mode=1
    ),
    "GlobalAveragePool": call("GlobalAveragePool", IMAGE),
    "GlobalMaxPool": call("GlobalMaxPool", IMAGE),
    "Softmax": call("Softmax", ROWS),
    "Softmax over channels": call("Softmax", IMAGE, axis=1),
    "LogSoftmax": call("LogSoftmax", ROWS, axis=2),
    "LayerNormalization": call("LayerNormalization", ROWS, weights={"s": floats(8), "b": floats(8)}),
    "LayerNormalization without bias": call(
        "LayerNormalization", ROWS, weights={"s": floats(5, 8)}, axis=-2, epsilon=0.01
    ),
    "LRN": call("LRN", IMAGE, size=5, alpha=0.02, beta=0.6, bias=2.0),
    "ReduceMean over the image": call("ReduceMean", IMAGE, weights={"a": integers(2, 3)}),
    "ReduceMean of rows": call("ReduceMean", ROWS, weights={"a": integers(-1)}, keepdims=0),
    "ReduceSum": call("ReduceSum", ROWS, weights={"a": integers(1, 3)}),
    "ReduceMax": call("ReduceMax", ROWS),
    "ReduceMin": call("ReduceMin", ROWS, weights={"a": integers(0)}),
    "ReduceProd": call("ReduceProd", ROWS, weights={"a": integers(2)}),
    "Concat": call("Concat", ROWS, (2, 4, 5, 8), axis=1),
    "Transpose": call("Transpose", ROWS, perm=[2, 0, 3, 1]),
    "Transpose by default": call("Transpose", ROWS),
    "Reshape": call("Reshape", ROWS, weights={"n": integers(6, -1)}),
    "Slice": call("Slice", ROWS, weights={
        "s": integers(1, -3), "e": integers(9, -1), "a": integers(1, 3)}),
    "Slice in steps": call("Slice", ROWS, weights={
        "s": integers(1, -7), "e": integers(9, 9), "a": integers(1, 3), "t": integers(2, 2)}),
    "Gather one row": call("Gather", ROWS, weights={"i": integers(-1).reshape(())}, axis=2),
    "Gather rows": call("Gather", ROWS, weights={"i": integers(1, 2, 3, 4).reshape(2, 2)}, axis=3),
    "Gather every second": call("Gather", ROWS, weights={"i": integers(0, 2, 4)}, axis=3),
    "Pad": call("Pad", IMAGE, weights={"p": RIM}),
    "Pad by a number": call("Pad", ROWS, weights={
        "p": integers(0, 1, 0, 2), "n": np.float32(-1.5), "a": integers(1, -1)}),
    "Expand": call("Expand", (2, 1, 5), weights={"n": integers(2, 3, 5)}),
    "Expand to itself": call("Expand", (2, 5), weights={"n": integers(2, 1)}),
    "Resize by whole factors": call("Resize", IMAGE, weights=UP, **FLOOR),
    "Resize, nearest by default": call("Resize", IMAGE, weights=UP),
    "Resize, linear": call("Resize", IMAGE, weights=UP, **LINEAR),
    "Resize to a size": call("Resize", IMAGE, weights=SIZE, **LINEAR),
    "Abs": call("Abs", ROWS), "Elu": call("Elu", ROWS, alpha=0.7), "Exp": call("Exp", ROWS),
    "Gelu": call("Gelu", ROWS), "Gelu by tanh": call("Gelu", ROWS, approximate="tanh"),
    "HardSigmoid": call("HardSigmoid", ROWS, alpha=0.3, beta=0.4),
    "HardSwish": call("HardSwish", ROWS), "LeakyRelu": call("LeakyRelu", ROWS, alpha=0.2),
    "Mish": call("Mish", ROWS), "Neg": call("Neg", ROWS), "Relu": call("Relu", ROWS),
    "Round": call("Round", ROWS), "Sigmoid": call("Sigmoid", ROWS), "Softplus": call("Softplus", ROWS),
    "Tanh": call("Tanh", ROWS), "Reciprocal": call("Reciprocal", ROWS),
    "Clip": call("Clip", ROWS, weights={"low": np.float32(-0.5), "high": np.float32(0.7)}),
    "Pow 2": call("Pow", ROWS, weights=number(2)), "Pow 3": call("Pow", ROWS, weights=number(3)),
    "Add a number": call("Add", ROWS, weights=number(2)),
    "Sub a number": call("Sub", ROWS, weights=number(2)),
    "Mul by a number": call("Mul", ROWS, weights=number(3)),
    "Div by a number": call("Div", ROWS, weights=number(3)),
    "Max with a number": call("Max", ROWS, weights=number(0.1)),
    "Min with a number": call("Min", ROWS, weights=number(0.1)),
    "Add": call("Add", ROWS, ROWS), "Sub": call("Sub", ROWS, ROWS), "Mul": call("Mul", ROWS, ROWS),
    "Max": call("Max", ROWS, ROWS), "Min": call("Min", ROWS, ROWS), "Div": call("Div", ROWS, ROWS),
    "Add of a tensor to itself": ([node("Add", "xx")], {"x": ROWS}, None),
    "Add a row": call("Add", ROWS, weights={"w": floats(8)}),
    "Mul by a channel": call("Mul", IMAGE, weights={"w": floats(16, 1, 1)}),
    "Mul by a column": call("Mul", ROWS, (2, 3, 5, 1)),
    "a smaller tensor less a larger one": call("Sub", (5, 8), ROWS),
    "a smaller tensor over a larger one": call("Div", (5, 8), ROWS),
    "Flatten": call("Flatten", ROWS), "Identity": call("Identity", ROWS),
    "Unsqueeze": call("Unsqueeze", ROWS, weights={"a": integers(0)}),
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
    [call("Sqrt", ROWS), call("Log", ROWS), call("Pow", ROWS, weights=number(0.5)),
     call("Pow", ROWS, weights=number(-1.5)), call("Div", ROWS, (5, 8)),
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
    "has no Erf": call("Erf", ROWS),
    "the weight 'x1' is no constant": call("Conv", IMAGE, (8, 16, 3, 3)),
    "over 4 dimensions": call("MaxPool", (1, 2, 3, 4, 5, 6), kernel_shape=[1, 1, 1, 1]),
    "has rank 7": call("Relu", (1, 2, 1, 2, 1, 2, 1)),
    "is empty": call("Relu", (0, 2)),
    "MatMul with a vector": call("MatMul", (8,), (8, 4)),
    "Gemm with transA": call("Gemm", (8, 5), weights={"w": floats(8, 6)}, transA=1),
    "beta and a computed summand": (
        [node("Gemm", "xwz", beta=2.0)], {"x": (5, 8), "z": (5, 6)}, {"w": floats(8, 6)}),
    "the right matrix 'x1' is no constant": call("Gemm", (5, 8), (8, 6)),
    "whose second output is used": (
        [node("MaxPool", "x", "yz", kernel_shape=[2, 2])], {"x": IMAGE}, None),
    "that counts the pads": call(
        "AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=1),
    "mean or deviation is used": (
        [node("LayerNormalization", "xs", "yz")], {"x": ROWS}, {"s": floats(8)}),
    "a broadcast scale": call("LayerNormalization", ROWS, weights={"s": floats(1)}),
    "bounds of Clip are computed": call("Clip", ROWS, ()),
    "exponent of Pow is no constant": call("Pow", ROWS, ROWS),
    "all operands are broadcast": call("Add", (5, 1), (1, 8)),
    "has 3 operands": call("Max", ROWS, ROWS, ROWS),
    "steps below 1": call("Slice", ROWS, weights={
        "s": integers(9), "e": integers(0), "a": integers(3), "t": integers(-2)}),
    "leads out of the tensor": call("Slice", ROWS, weights={
        "s": integers(0), "e": integers(9), "a": integers(2), "t": integers(2)}),
    "do not ascend at one distance": call("Gather", ROWS, weights={"i": integers(0, 1, 3)}, axis=3),
    "that do not ascend": call("Gather", ROWS, weights={"i": integers(1, 0)}, axis=3),
    "in mode reflect": call("Pad", IMAGE, weights={"n": RIM}, mode="reflect"),
    "a number that is computed": (
        [node("Pad", "xpn")], {"x": IMAGE, "n": ()}, {"p": RIM}),
    "by less than nothing": call("Pad", IMAGE, weights={"p": -RIM}),
    "by more than the tensor holds": call("Pad", IMAGE, weights={"p": 9 * RIM}),
    "Expand from": call("Expand", (1, 1), weights={"n": integers(3, 4)}),
    "factor that is not whole": call("Resize", IMAGE, weights=SIZE, mode="nearest"),
    "in mode cubic": call("Resize", IMAGE, weights=UP, mode="cubic"),
    "with other coordinates than half_pixel": call(
        "Resize", IMAGE, weights=UP, mode="linear", coordinate_transformation_mode="align_corners"),
    "with asymmetric and ceil": call(
        "Resize", IMAGE, weights=UP, nearest_mode="ceil", coordinate_transformation_mode="asymmetric"),
    "with antialias": call("Resize", IMAGE, weights=UP, antialias=1, **LINEAR),
    "that the sizes do not have exactly": call("Resize", IMAGE, weights={
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
        BACKEND.compile(function, 1, BuildContext(1))


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
        BACKEND.compile(regions.convolutions(tmp_path), 1, BuildContext(1), variant="fast")


def test_versions_are_part_of_the_identity():
    assert BACKEND.identity == f"onednn onednn={plugin.library_version('onednn')}"


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.delenv("COLLAGE_LIB_ONEDNN", raising=False)
    absent = plugin.Library("not-installed", "libdnnl.so.3", "onednn-cpu-gomp==2023.2.0")
    monkeypatch.setitem(plugin.LIBRARIES, "onednn", absent)
    availability = BACKEND.availability()
    assert not availability.available
    assert "pip install 'onednn-cpu-gomp==2023.2.0'" in availability.reason


def test_a_plugin_built_without_onednn_is_reported(monkeypatch):
    backend._plugin_reason.cache_clear()
    monkeypatch.setattr(backend, "KERNEL_KIND", "onednn_absent")
    try:
        assert "no kernel of kind 'onednn_absent' in this build" in BACKEND.availability().reason
    finally:
        backend._plugin_reason.cache_clear()

"""Native kernels at the edges of their types: NaN, infinities, overflow, masked rows, bad indices."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import BuildContext
from collage.backends.cpu.tvm import TvmBackend
from collage.errors import BackendError
from collage.frontend import import_model
from collage.frontend.region import region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel, poisoned_like
from collage.runtime.arrays import aligned_copy

NAN, INF = math.nan, math.inf
SPECIAL = np.array(
    [NAN, INF, -INF, 0.0, -0.0, 1e-40, 0.5, -0.5, 1.5, 2.5, 88.6, -88.6, 104, -104, 7, -3],
    np.float32,
)
TYPES = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("int64"): TensorProto.INT64,
         np.dtype("int32"): TensorProto.INT32}  # fmt: skip


def model_of(nodes, feeds, weights=None):
    inputs = [helper.make_tensor_value_info(n, TYPES[v.dtype], v.shape) for n, v in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(nodes[-1].output[0])]
    tensors = [numpy_helper.from_array(v, n) for n, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "edges", inputs, outputs, tensors)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    )


def original(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def native(model, feeds, folder):
    onnx.save(model, folder / "model.onnx")
    function = import_model(folder / "model.onnx", work_dir=folder).functions[0]
    kernel = TvmBackend().compile(function, function.graph.everything, BuildContext(1))
    call, constants = callable_kernel(kernel, 1)
    types = function.graph.types
    names, (result,) = region_values(function, function.graph.everything)
    output = poisoned_like(np.empty(types[result].shape, types[result].dtype))
    call(*as_tensors([*(aligned_copy(feeds[name]) for name in names), *constants, output]))
    return output


def check(nodes, feeds, folder, weights=None):
    model = model_of(nodes, feeds, weights)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            native(model, feeds, folder), original(model, feeds), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("op", [
    "Relu", "Exp", "Erf", "Tanh", "Sigmoid", "HardSwish", "HardSigmoid", "Softplus", "Mish", "Elu",
    "Selu", "Celu", "LeakyRelu", "Sign", "Abs", "Round", "ThresholdedRelu",
])  # fmt: skip
def test_activations_keep_nan_and_infinities(op, tmp_path):
    feeds = {"x": np.stack([SPECIAL, SPECIAL[::-1]])}
    check([helper.make_node(op, ["x"], ["y"])], feeds, tmp_path)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("right", [SPECIAL[::-1].copy(), np.float32(0.1)], ids=["row", "number"])
def test_extremes_of_two_keep_nan_of_either(op, right, tmp_path):
    feeds = {"x": SPECIAL.reshape(1, -1)}
    check([helper.make_node(op, ["x", "z"], ["y"])], feeds, tmp_path, {"z": right})
    check([helper.make_node(op, ["z", "x"], ["y"])], feeds, tmp_path, {"z": right})


def test_a_clip_keeps_nan(tmp_path):
    bounds = {"low": np.float32(-1), "high": np.float32(1)}
    check([helper.make_node("Clip", ["x", "low", "high"], ["y"])], {"x": SPECIAL}, tmp_path, bounds)


@pytest.mark.parametrize("width", [7, 16, 50, 512])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_an_extreme_of_a_row_with_nan_is_nan(op, width, tmp_path):
    x = np.random.default_rng(1).standard_normal((3, width)).astype(np.float32)
    x[0, width // 2] = NAN
    x[1] = -INF if op == "ReduceMax" else INF
    axes = {"axes": np.array([1])}
    model = model_of([helper.make_node(op, ["x", "axes"], ["y"])], {"x": x}, axes)
    extreme = np.max if op == "ReduceMax" else np.min
    result = native(model, {"x": x}, tmp_path)
    np.testing.assert_array_equal(result, extreme(x, axis=1, keepdims=True))


def test_a_window_with_nan_has_the_maximum_nan(tmp_path):
    x = np.random.default_rng(1).standard_normal((1, 2, 12, 12)).astype(np.float32)
    x[0, 0, 3, 4], x[0, 1, 6:] = NAN, -INF
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    )
    result = native(model_of([node], {"x": x}), {"x": x}, tmp_path)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-INF)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    np.testing.assert_array_equal(result, windows.max((4, 5)))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_fully_masked_row_of_softmax_is_nan(op, tmp_path):
    x = np.random.default_rng(1).standard_normal((3, 20)).astype(np.float32)
    x[1], x[2, 3:] = -INF, -INF
    check([helper.make_node(op, ["x"], ["y"], axis=-1)], {"x": x}, tmp_path)


def test_a_masked_row_has_its_extreme_at_the_first_place(tmp_path):
    x = np.full((3, 20), -INF, np.float32)
    x[0, [4, 9]] = 1.0
    check([helper.make_node("ArgMax", ["x"], ["y"], axis=1)], {"x": x}, tmp_path)
    check([helper.make_node("ArgMin", ["x"], ["y"], axis=1)], {"x": -x}, tmp_path)


def test_many_activations_in_a_row_build_in_one_kernel(tmp_path):
    nodes, value = [], "x"
    for step in range(16):
        nodes += [helper.make_node("Relu", [value], [f"r{step}"]),
                  helper.make_node("Add", [f"r{step}", "c"], [f"s{step}"])]  # fmt: skip
        value = f"s{step}"
    check(nodes, {"x": np.stack([SPECIAL] * 2)}, tmp_path, {"c": np.float32(-0.01)})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", ["Mul", "Add", "Sub"])
def test_integers_overflow_as_two_complement_before_a_remainder(op, dtype, tmp_path):
    bounds = np.iinfo(dtype)
    x = np.array([[bounds.min, bounds.max, -1, 0, bounds.min // 2, 12345]], dtype)
    weights = {"c": np.array(2654435761 % bounds.max, dtype), "m": np.array(1009, dtype)}
    nodes = [helper.make_node(op, ["x", "c"], ["p"]), helper.make_node("Mod", ["p", "m"], ["y"])]
    check(nodes, {"x": x}, tmp_path, weights)


TABLE = np.random.default_rng(2).standard_normal((12, 16)).astype(np.float32)
INDEXED = {
    "Gather": np.array([[1, -2, 3], [0, 11, -12]]),
    "GatherElements": np.array([[1, -2, 3], [0, 11, -12]]),
    "GatherND": np.array([[1, -2], [-12, 15]]),
}


@pytest.mark.parametrize("op", INDEXED)
def test_an_index_out_of_range_is_an_error(op, tmp_path):
    index = INDEXED[op]
    node, weights = helper.make_node(op, ["table", "i"], ["y"]), {"table": TABLE}
    check([node], {"i": index}, tmp_path, weights)
    model = model_of([node], {"i": index}, weights)
    for place in ((1, 0), (0, 0)):
        for wrong in (12, -13, 2**40):
            other = index.copy()
            other[place] = wrong
            with pytest.raises(IndexError, match="out of range"):
                native(model, {"i": other}, tmp_path)


def test_indices_are_checked_behind_views_and_casts(tmp_path):
    nodes = [helper.make_node("Cast", ["i"], ["wide"], to=TensorProto.INT64),
             helper.make_node("Unsqueeze", ["wide", "first"], ["row"]),
             helper.make_node("Gather", ["table", "row"], ["y"])]  # fmt: skip
    weights = {"table": TABLE, "first": np.array([0])}
    index = np.array([3, -4], np.int32)
    check(nodes, {"i": index}, tmp_path, weights)
    with pytest.raises(IndexError, match="12 elements"):
        native(model_of(nodes, {"i": index}, weights), {"i": index + 20}, tmp_path)


def test_computed_indices_are_refused_unless_a_remainder(tmp_path):
    product = helper.make_node("Mul", ["i", "two"], ["p"])
    remainder = helper.make_node("Mod", ["p", "size"], ["m"])
    weights = {"table": TABLE, "two": np.array(2), "size": np.array(12)}
    index = np.array([[1, -5, 2**62]])
    check([product, remainder, helper.make_node("Gather", ["table", "m"], ["y"])], {"i": index},
          tmp_path, weights)  # fmt: skip
    model = model_of(
        [product, helper.make_node("Gather", ["table", "p"], ["y"])], {"i": index}, weights
    )
    with pytest.raises(BackendError, match="computed in the same kernel"):
        native(model, {"i": index}, tmp_path)

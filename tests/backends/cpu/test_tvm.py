"""Native kernels agree with ONNX Runtime for all shapes and refused scheduling steps."""

import math
import re

import numpy as np
import onnxruntime
import pytest

from benchmarks.native_regions import REGIONS, BenchmarkRegion, make_region
from collage.backends.base import BuildContext
from collage.backends.cpu.tvm import CPU_SCHEDULE_REVISION, TvmBackend, schedule
from collage.backends.cpu.tvm import threads as sharing
from collage.frontend.inputs import random_inputs
from collage.frontend.region import region_onnx, region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel, poisoned_like
from collage.runtime.arrays import aligned_copy

SEED = 7


def run(function, threads, feeds):
    """Compile all nodes as one kernel and run it."""
    nodes = (1 << len(function.graph)) - 1
    kernel = TvmBackend().compile(function, nodes, BuildContext(threads))
    call, constants = callable_kernel(kernel, threads)
    inputs, outputs = region_values(function, nodes)
    types = function.graph.types
    arrays = [poisoned_like(np.empty(types[name].shape, types[name].dtype)) for name in outputs]
    call(*as_tensors([*(aligned_copy(feeds[name]) for name in inputs), *constants, *arrays]))
    return kernel, arrays


def check(function, threads=1, tolerance=1e-5, feeds=None):
    feeds = feeds or random_inputs(function, seed=SEED)
    kernel, arrays = run(function, threads, feeds)
    nodes = (1 << len(function.graph)) - 1
    inputs, outputs = region_values(function, nodes)
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    expected = session.run(list(outputs), {name: feeds[name] for name in inputs})
    for value, reference in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=tolerance, atol=tolerance)
    return kernel


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", REGIONS)
def test_regions_of_real_models(name, threads, tmp_path):
    check(make_region(REGIONS[name], tmp_path), threads)


UNARY = ["Relu", "Exp", "Erf", "Tanh", "Sigmoid", "HardSwish", "HardSigmoid", "Sqrt", "Abs", "Neg",
         "Log", "Floor", "Softplus", "Reciprocal", "Mish", "Elu", "Gelu"]  # fmt: skip


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5, 33), (2, 1, 64)])
@pytest.mark.parametrize("kind", UNARY)
def test_element_wise_operators(kind, shape, tmp_path):
    region = BenchmarkRegion()
    x = region.input(*shape)
    if kind in ("Sqrt", "Log"):
        x = region.op("Add", region.op("Abs", x), region.constant(0.25))
    check(region.function([region.op(kind, x)], tmp_path))


def odd_softmax(r, axis):
    return [r.op("Softmax", r.input(2, 5, 7, 19), axis=axis)]


def odd_norm(r):
    return [r.op("LayerNormalization", r.input(3, 7, 33), r.weight(33), r.weight(33), axis=-1)]


def norm_of_two_axes(r):
    return [r.op("LayerNormalization", r.input(3, 7, 10), r.weight(7, 10), r.weight(7, 10), axis=1)]


def reduced(kind, axes, keepdims):
    def build(r):
        return [r.op(kind, r.input(2, 5, 7, 19), r.constant(axes), keepdims=keepdims)]

    return build


def pooled(kind, **attributes):
    return lambda r: [r.op(kind, r.input(1, 5, 19, 23), **attributes)]


def depthwise(stride, kernel, dilation=1):
    def build(r):
        x, weight = r.input(2, 6, 19, 23), r.weight(6, 1, kernel, kernel)
        options = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [kernel // 2] * 4}
        y = r.op("Conv", x, weight, r.weight(6), group=6, **options)
        return [r.op("Clip", y, r.constant(0.0), r.constant(6.0))]

    return build


def split_three(r):
    return r.ops("Split", 3, r.input(2, 9, 5), axis=1, num_outputs=3)


def sliced(r):
    starts, ends, axes, steps = (r.constant(v) for v in ([1, 0], [4, 30], [1, 2], [1, 2]))
    return [r.op("Slice", r.op("Relu", r.input(2, 5, 31)), starts, ends, axes, steps)]


def scalar(r):
    return [r.op("Mul", r.input(), r.constant(3.0))]


def broadcast_both(r):
    return [r.op("Add", r.input(3, 1, 5), r.input(1, 4, 1))]


def shared_expensive(r):
    """One exponential, two readers, three results."""
    power = r.op("Exp", r.input(4, 33))
    total = r.op("ReduceSum", power, r.constant([1]), keepdims=1)
    return [power, total, r.op("Div", power, total)]


def chain(r):
    """Bias, gelu, residual, layer norm."""
    x = r.op("Gelu", r.op("Add", r.input(1, 9, 50), r.weight(50)))
    total = r.op("Add", x, r.input(1, 9, 50))
    return [r.op("LayerNormalization", total, r.weight(50), r.weight(50), axis=-1)]


def attention_core(r):
    """Two small products around a softmax."""
    scores = r.op("MatMul", r.input(2, 9, 16), r.input(2, 16, 9))
    return [r.op("MatMul", r.op("Softmax", scores, axis=-1), r.input(2, 9, 16))]


def rows_of_table(r):
    return [r.op("Gather", r.weight(50, 12), r.input(3, 4, dtype="int64"), axis=0)]


def squeeze_and_excite(r):
    x = r.input(1, 8, 7, 9)
    pooled = r.op("GlobalAveragePool", x)
    return [r.op("Mul", x, r.op("Sigmoid", r.op("Conv", pooled, r.weight(8, 8, 1, 1))))]


def normalised_map(r):
    return [r.op("InstanceNormalization", r.input(1, 6, 7, 9), r.weight(6), r.weight(6))]


TABLE = {
    "softmax, last axis": lambda r: odd_softmax(r, -1),
    "softmax, axis 1": lambda r: odd_softmax(r, 1),
    "softmax, axis 2": lambda r: odd_softmax(r, 2),
    "log softmax": lambda r: [r.op("LogSoftmax", r.input(3, 19), axis=-1)],
    "layer norm": odd_norm,
    "layer norm of two axes": norm_of_two_axes,
    "instance norm": normalised_map,
    "mean, last": reduced("ReduceMean", [3], 1),
    "mean, maps": reduced("ReduceMean", [2, 3], 0),
    "mean, channels": reduced("ReduceMean", [1], 1),
    "mean, apart": reduced("ReduceMean", [1, 3], 0),
    "mean, batch": reduced("ReduceMean", [0], 0),
    "mean, all": reduced("ReduceMean", [0, 1, 2, 3], 0),
    "max": reduced("ReduceMax", [1, 2], 1),
    "sum": reduced("ReduceSum", [2], 0),
    "max pool": pooled("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max pool, apart": pooled("MaxPool", kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 0]),
    "average pool": pooled("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "average pool, padded": pooled(
        "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "global max pool": pooled("GlobalMaxPool"),
    "depthwise 3": depthwise(1, 3),
    "depthwise 5 stride 2": depthwise(2, 5),
    "depthwise 3 dilated": depthwise(1, 3, 2),
    "transpose": lambda r: [r.op("Transpose", r.input(3, 16, 24), perm=[2, 0, 1])],
    "transpose, odd": lambda r: [r.op("Transpose", r.input(3, 5, 7, 9), perm=[3, 1, 0, 2])],
    "concat": lambda r: [r.op("Concat", r.input(2, 3, 5), r.input(2, 4, 5), axis=1)],
    "split": split_three,
    "slice": sliced,
    "resize, linear": lambda r: [
        r.op("Resize", r.input(1, 3, 5, 7), "", "", r.constant([1, 3, 11, 14]), mode="linear")
    ],
    "resize, nearest": lambda r: [
        r.op("Resize", r.input(1, 3, 5, 7), "", "", r.constant([1, 3, 10, 14]), mode="nearest")
    ],
    "scalar": scalar,
    "broadcast of both": broadcast_both,
    "shared exponential": shared_expensive,
    "chain": chain,
    "attention": attention_core,
    "gather": rows_of_table,
    "squeeze and excite": squeeze_and_excite,
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", TABLE)
def test_odd_shapes(name, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "MINIMUM_SHARED", 16)
    region = BenchmarkRegion()
    check(region.function(TABLE[name](region), tmp_path), threads)


EXACT = {
    "Exp": np.exp,
    "Erf": np.vectorize(math.erf),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("kind", EXACT)
def test_polynomials_over_the_whole_range(kind, tmp_path):
    region = BenchmarkRegion()
    function = region.function([region.op(kind, region.input(200001))], tmp_path)
    x = np.linspace(-87, 87, 200001, dtype="float32")
    x[:4] = [0.0, -0.0, 1e-30, 88.0]
    _, (computed,) = run(function, 1, {"x0": x})
    np.testing.assert_allclose(computed, EXACT[kind](x.astype("float64")), rtol=1e-6, atol=1e-37)


def test_masked_scores_get_no_weight(tmp_path):
    region = BenchmarkRegion()
    function = region.function([region.op("Softmax", region.input(2, 20), axis=-1)], tmp_path)
    x = np.full((2, 20), -np.inf, "float32")
    x[:, 3:5] = 1.0
    check(function, feeds={"x0": x})


def test_large_offsets_do_not_cancel_in_layer_norm(tmp_path):
    region = BenchmarkRegion()
    function = region.function(odd_norm(region), tmp_path)
    x = np.random.default_rng(SEED).standard_normal((3, 7, 33)).astype("float32") + 1000
    check(function, feeds={"x0": x}, tolerance=1e-3)


def test_kernels_stay_as_they_were_measured(tmp_path):
    region = BenchmarkRegion()
    kernel = check(region.function([region.op("Relu", region.input(4, 4))], tmp_path))
    assert int(kernel.module[kernel.symbol].attrs["op_pattern"]) == 8


def test_a_refused_rule_loses_no_kernel(tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("refused")

    for rule in ("inline_stages", "join_rows", "_schedule_stage", "clear_sums"):
        monkeypatch.setattr(schedule, rule, refuse)
    region = BenchmarkRegion()
    check(region.function(chain(region), tmp_path))


def test_reductions_and_windows_take_the_shapes_that_vectorise(tmp_path):
    region = BenchmarkRegion()
    kernel = check(region.function(depthwise(1, 3)(region), tmp_path))
    assert "T.unroll" in kernel.module.script()
    region = BenchmarkRegion()
    kernel = check(region.function(odd_softmax(region, 1), tmp_path))
    assert re.search(r"sblock\(\"softmax_sum_init\"", kernel.module.script())


def test_conditions_stay_out_of_the_innermost_loop(tmp_path):
    region = BenchmarkRegion()
    x = region.op("Sigmoid", region.input(1, 32, 16, 16))
    y = region.op("Concat", x, region.input(1, 32, 16, 16), axis=1)
    kernel = check(region.function([y], tmp_path))
    assert "T.vectorized(T.int64(16))" in kernel.module.script()


def test_odd_products_are_widened_to_vectors(tmp_path):
    region = BenchmarkRegion()
    product = region.op("MatMul", region.input(2, 20, 24), region.input(2, 24, 49))
    script = check(region.function([region.op("Relu", product)], tmp_path)).module.script()
    assert "T.int64(64)" in script
    assert "T.vectorized(T.int64(16))" in script


def test_all_stages_of_a_softmax_run_in_one_loop_over_rows(tmp_path):
    region = BenchmarkRegion()
    y = region.op("Softmax", region.input(64, 49), axis=-1)
    script = check(region.function([y], tmp_path)).module.script()
    assert len(re.findall(r"^ {8}for ", script, re.MULTILINE)) == 1


def test_two_threads_share_the_outer_loop(tmp_path):
    region = BenchmarkRegion()
    function = region.function([region.op("Relu", region.input(64, 1024))], tmp_path)
    assert "T.parallel" in check(function, threads=2).module.script()
    assert "T.parallel" not in check(function, threads=1).module.script()


@pytest.mark.parametrize(
    ("stride", "width", "allowed"), [(1, 16, True), (2, 32, False), (1, 14, False)]
)
def test_convolutions_without_whole_vectors_are_refused_early(stride, width, allowed, tmp_path):
    region = BenchmarkRegion()
    x, weight = region.input(1, 64, width, width), region.weight(64, 64, 3, 3)
    y = region.op("Conv", x, weight, pads=[1] * 4, strides=[stride] * 2)
    reason = TvmBackend().unsupported(region.function([y], tmp_path), 0)
    assert (reason is None) == allowed


def test_dense_products_need_tuning(tmp_path):
    region = BenchmarkRegion()
    y = region.op("Conv", region.input(1, 64, 56, 56), region.weight(64, 64, 3, 3), pads=[1] * 4)
    reason = TvmBackend().unsupported(region.function([y], tmp_path), 0)
    assert reason == "a product of 231 MFLOP is far slower here without a tuned schedule"
    region = BenchmarkRegion()
    light = depthwise(1, 3)(region)
    assert TvmBackend().unsupported(region.function(light, tmp_path), 0) is None


def test_the_schedule_revision_is_part_of_the_identity():
    assert f"schedule={CPU_SCHEDULE_REVISION}" in TvmBackend().identity


RESIZE_MODES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
RESIZE_SIZES = [(9, 10), (12, 14), (17, 64), (6, 7), (3, 4), (1, 1)]


@pytest.mark.parametrize("size", RESIZE_SIZES)
@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_a_quantised_resize_has_the_bits_of_onnxruntime(mode, size, tmp_path):
    """Small integers give ties, and one bit decides the step."""
    region = BenchmarkRegion()
    sizes = region.constant([1, 2, *size])
    resized = region.op(
        "Resize", region.input(1, 2, 6, 7), "", "", sizes,
        mode="linear", coordinate_transformation_mode=mode,
    )  # fmt: skip
    zero = region.constant(np.zeros((), "int8"))
    steps = region.op("QuantizeLinear", resized, region.constant(1.0), zero)
    function = region.function([resized, steps], tmp_path)
    image = np.random.default_rng(SEED).integers(-8, 9, (1, 2, 6, 7)).astype("float32")
    check(function, tolerance=0, feeds={"x0": image})
    check(function, tolerance=0)

"""Edge cases find kernels that hide NaN, answer bad indices, or are wrong at the edges, and no others."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.frontend import import_model, region_reference
from collage.frontend.edge_inputs import EdgeKind, edge_inputs
from collage.frontend.region_reference import RegionReference
from collage.measure.edge_judgement import EdgeCases, EdgeRules, judge_edges

NORMAL = np.random.default_rng(3).standard_normal
TABLE = NORMAL((12, 4)).astype(np.float32)


def region_of(folder, node, feeds, weights=None):
    types = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
    inputs = [
        helper.make_tensor_value_info(name, types[value.dtype.kind], value.shape)
        for name, value in feeds.items()
    ]
    output = helper.make_empty_tensor_value_info(node.output[0])
    tensors = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph([node], "edges", inputs, [output], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "model.onnx")
    function = import_model(folder / "model.onnx", work_dir=folder).functions[0]
    cases = EdgeCases(function, function.graph.everything, list(feeds.values()))
    return cases, RegionReference(function, function.graph.everything)


@pytest.fixture
def relu(tmp_path):
    x = NORMAL((3, 8)).astype(np.float32)
    return region_of(tmp_path, helper.make_node("Relu", ["x"], ["y"]), {"x": x})[0]


def judge(cases, kernel, **rules):
    return judge_edges(cases, lambda inputs: (kernel(*inputs),), EdgeRules(**rules))


def exact_relu(x):
    return np.where(x < 0, np.float32(0), x)


def test_the_original_itself_passes_every_case(tmp_path):
    x = NORMAL((1, 4, 9, 9)).astype(np.float32)
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])
    cases, reference = region_of(tmp_path, node, {"x": x})
    judgement = judge_edges(cases, reference.run, EdgeRules())
    assert (judgement.defect, judgement.hides_nan) == ("", False)
    assert [case.edges.kind for case in cases.cases] == [
        EdgeKind.FINITE, EdgeKind.NAN, EdgeKind.INFINITE
    ]  # fmt: skip


def test_a_kernel_that_keeps_nan_passes(relu):
    assert not judge(relu, exact_relu).hides_nan
    assert not judge(relu, exact_relu).defect


def test_a_kernel_that_hides_nan_is_marked_and_not_refused(relu):
    judgement = judge(relu, lambda x: np.fmax(x, np.float32(0)))
    assert judgement.hides_nan
    assert not judgement.defect


def spread(x):
    y = exact_relu(x)
    y[np.isnan(y).any(axis=1)] = np.nan
    return y


def test_nan_in_elements_that_depend_on_none_is_wrong(relu):
    assert "NaN" in judge(relu, spread).defect
    assert not judge(relu, spread, spreads_nan=True).defect


def test_a_number_in_place_of_an_infinity_is_wrong(relu):
    judgement = judge(relu, lambda x: np.where(np.isinf(x), np.float32(3), exact_relu(x)))
    assert str(EdgeKind.INFINITE) in judgement.defect


def test_nan_in_place_of_an_infinity_is_allowed(relu):
    nan = np.float32(np.nan)
    assert not judge(relu, lambda x: np.where(np.isinf(x), nan, exact_relu(x))).defect


def test_a_maximum_may_keep_what_the_original_loses(tmp_path):
    x = NORMAL((4, 24)).astype(np.float32)
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y"])
    cases, _ = region_of(tmp_path, node, {"x": x}, {"axes": np.array([1])})
    assert not judge(cases, lambda x: x.max(axis=1, keepdims=True)).defect


def away_from_zero(x):
    return (np.sign(x) * np.floor(np.abs(x) + np.float32(0.5))).astype(np.float32)


def test_ties_that_round_the_other_way_are_wrong(tmp_path):
    x = NORMAL((2, 40)).astype(np.float32)
    cases, _ = region_of(tmp_path, helper.make_node("Round", ["x"], ["y"]), {"x": x})
    assert not judge(cases, np.round).defect
    assert str(EdgeKind.FINITE) in judge(cases, away_from_zero).defect


def test_integers_of_fewer_bits_are_wrong(tmp_path):
    feeds = {"a": np.arange(12).reshape(2, 6), "b": np.arange(12).reshape(2, 6)}
    cases, _ = region_of(tmp_path, helper.make_node("Mul", ["a", "b"], ["y"]), feeds)
    assert not judge(cases, lambda a, b: a * b).defect
    short = judge(cases, lambda a, b: (a.astype(np.int32) * b.astype(np.int32)).astype(np.int64))
    assert str(EdgeKind.FINITE) in short.defect


def checked_rows(index):
    if (index < -12).any() or (index >= 12).any():
        raise IndexError("an index is out of range")
    return TABLE[index]


@pytest.mark.parametrize(
    ("kernel", "defect"),
    [
        (checked_rows, ""),
        (lambda index: TABLE[np.clip(index, -12, 11)], "answers where ONNX Runtime refuses"),
        (lambda index: TABLE[np.clip(index, 0, 11)], str(EdgeKind.NEGATIVE_INDEX)),
        (lambda index: TABLE.reshape(-1)[index * 4 + 500], f"fails on {EdgeKind.NEGATIVE_INDEX}"),
    ],
    ids=["checked", "clipped", "no negative ones", "no negative ones, with an error"],
)
def test_indices_out_of_range_must_be_refused(kernel, defect, tmp_path):
    index = np.array([[1, 3, 7], [0, 11, 2]])
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    cases, _ = region_of(tmp_path, node, {"i": index}, {"table": TABLE})
    found = judge(cases, kernel).defect
    assert defect in found if defect else not found


def test_a_quantised_region_is_not_judged_on_nan(relu):
    assert not judge(relu, lambda x: np.fmax(x, np.float32(0)), quantised=True).hides_nan


DOUBLING = """
<ir_version: 9, opset_import: ["" : 18]>
main (float[2,8] x) => (float[2,8] y)
<float limit = {100.0}>
{
    go = Constant <value = bool {1}> ()
    y = Loop ("", go, x) <body = turn (int64 i, bool going, float[2,8] state)
        => (bool next_going, float[2,8] next) {
            next = Add (state, state)
            least = ReduceMin <keepdims = 0> (next)
            next_going = Less (least, limit)
        }>
}
"""
"""A loop that has no end where an element is 0, negative or -inf."""


def test_a_loop_is_judged_where_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(region_reference, "MAX_RUN_S", 0.5)
    onnx.save(onnx.parser.parse_model(DOUBLING), tmp_path / "model.onnx")
    function = import_model(tmp_path / "model.onnx", work_dir=tmp_path).functions[0]
    x = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    cases = EdgeCases(function, function.graph.everything, [x])
    kinds = [edges.kind for edges in edge_inputs(function, function.graph.everything, [x])]
    assert kinds == [EdgeKind.FINITE]
    assert cases.cases == []
    reference = RegionReference(function, function.graph.everything)
    assert reference.run([x])[0].min() == 128
    with pytest.raises(TimeoutError):
        reference.run([np.zeros_like(x)])


POSITIVE = """
<ir_version: 9, opset_import: ["" : 18]>
main (float[2,8] x) => (float[n] y)
{
    zero = Constant <value = float {0.0}> ()
    shape = Constant <value = int64[1] {-1}> ()
    flat = Reshape (x, shape)
    condition = Greater (flat, zero)
    y = Compress (flat, condition)
}
"""
"""An output whose shape depends on the numbers."""


def test_an_output_of_another_shape_depends_on_infinity(tmp_path):
    onnx.save(onnx.parser.parse_model(POSITIVE), tmp_path / "model.onnx")
    function = import_model(tmp_path / "model.onnx", work_dir=tmp_path).functions[0]
    x = np.full((2, 8), -1, np.float32)
    x[0, :2] = 1
    cases = EdgeCases(function, function.graph.everything, [x])
    lengths = {case.edges.kind: len(case.expected[0]) for case in cases.cases}
    assert (lengths[EdgeKind.NAN], lengths[EdgeKind.INFINITE]) == (2, 3)

    def positive(x):
        y = x[x > 0]
        return np.where(np.isinf(y), np.float32(np.nan), y)

    assert judge(cases, positive).defect == ""

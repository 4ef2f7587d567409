"""Models whose shapes depend on data: each gets a bundle, and the rest of it keeps its regions."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_node as node

import collage
from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext
from collage.backends.registry import available_backends
from collage.errors import ModelError, SearchError
from collage.frontend.region import region_values
from collage.graph.dynamic_shape_groups import dynamic_shape_groups
from collage.graph.index_set import first, indices
from collage.rules.candidates import find_candidates
from collage.verify.benchmark_target import BenchmarkTarget, TargetProcess
from collage.verify.plan_executable import function_signature
from tests.frontend.build import floats, imported, integers, model, save

pytestmark = pytest.mark.full

Inputs = Mapping[str, np.ndarray]


def compiled(proto: onnx.ModelProto, folder: Path):
    """Compile with little measuring; return the model's path, the bundle and the summary."""
    path = save(proto, folder)
    options = collage.Options(
        threads=1, cache_dir=folder / "store", verify_s=0.1, measure_budget_s=6,
        fallback=False, allow_slower=True,
    )  # fmt: skip
    return path, folder / "bundle", collage.compile(path, options, output=folder / "bundle")


def expected(path: Path, inputs: Inputs) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def run_in_fresh_process(bundle: Path, feeds: Sequence[Inputs], folder: Path) -> list[dict]:
    """Load the bundle where no compiler and no ONNX is imported, check it, and run every feed."""
    for number, inputs in enumerate(feeds):
        np.savez(folder / f"in{number}.npz", **inputs)
    code = f"""
import sys, numpy as np, collage
bundle = collage.load({str(bundle)!r})
bundle.check()
for number in range({len(feeds)}):
    with np.load({str(folder)!r} + f"/in{{number}}.npz") as feed:
        np.savez({str(folder)!r} + f"/out{{number}}.npz", **bundle.run(dict(feed)))
assert not {{"tvm", "onnx", "onnxruntime", "openvino"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    results = []
    for number in range(len(feeds)):
        with np.load(folder / f"out{number}.npz") as stored:
            results.append(dict(stored))
    return results


def check(proto: onnx.ModelProto, feeds: Sequence[Inputs], folder: Path):
    """Compile, run in a fresh process on `feeds`, compare with ONNX Runtime; return the summary."""
    path, bundle, summary = compiled(proto, folder)
    for inputs, results in zip(feeds, run_in_fresh_process(bundle, feeds, folder), strict=True):
        reference = expected(path, inputs)
        assert results.keys() == reference.keys()
        for name, value in reference.items():
            assert results[name].shape == value.shape
            assert results[name].dtype == value.dtype
            np.testing.assert_allclose(results[name], value, rtol=1e-3, atol=1e-4)
    return summary


def output_shapes(folder: Path) -> dict[str, list[int] | None]:
    manifest = json.loads((folder / "bundle" / "manifest.json").read_text())
    return {output["name"]: output["shape"] for output in manifest["functions"][0]["outputs"]}


def region_of(summary, op: str):
    return next(region for region in summary.plan if op in region.ops)


def graph_body(name: str, nodes, inputs, outputs):
    return helper.make_graph(nodes, name, inputs, outputs)


def test_nonzero_at_the_output_down_to_no_element(tmp_path):
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("NonZero", ["r"], ["n"]),
            node("Transpose", ["n"], ["y"]),
        ],
        {"x": ("float32", (4, 6))},
        ["y", "r"],
    )
    x = floats(4, 6, seed=3)
    summary = check(proto, [{"x": x}, {"x": np.abs(x)}, {"x": -np.abs(x)}, {"x": x}], tmp_path)
    assert region_of(summary, "NonZero").backend == "onnxruntime"
    assert "2 values have no shape" in summary.notes[0]
    assert output_shapes(tmp_path) == {"y": [-1, 2], "r": [4, 6]}
    report = (tmp_path / "bundle" / "report.html").read_text()
    assert "int64[?, 2]" in report


def detector() -> onnx.ModelProto:
    """Convolutions, then boxes and scores from their features, then NonMaxSuppression and Gathers."""
    return model(
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"]),
            node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
            node("Relu", ["c2"], ["r2"]),
            node("Conv", ["r2", "w3"], ["head"]),
            node("Reshape", ["head", "flat"], ["rows"]),
            node("Transpose", ["rows"], ["cells"], perm=[0, 2, 1]),
            node("Slice", ["cells", "zero", "four", "axis"], ["boxes"]),
            node("Slice", ["rows", "four", "five", "one"], ["raw"]),
            node("Sigmoid", ["raw"], ["scores"]),
            node(
                "NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["selected"]
            ),
            node("Gather", ["selected", "last"], ["places"], axis=1),
            node("Squeeze", ["places", "one"], ["index"]),
            node("Gather", ["boxes", "index"], ["kept"], axis=1),
        ],
        {"x": ("float32", (1, 3, 16, 16))},
        ["kept", "selected", "scores"],
        {
            "w1": floats(16, 3, 3, 3), "b1": floats(16), "w2": floats(16, 16, 3, 3) / 4,
            "w3": floats(5, 16, 1, 1) / 4, "flat": integers(1, 5, 256), "zero": integers(0),
            "four": integers(4), "five": integers(5), "one": integers(1), "axis": integers(2),
            "most": integers(20), "last": integers(2),
            "overlap": np.array([0.5], np.float32), "least": np.array([0.5], np.float32),
        },
    )  # fmt: skip


def test_a_detection_head_keeps_candidates_of_convolutions(tmp_path):
    feeds = [{"x": floats(1, 3, 16, 16, seed=seed)} for seed in (1, 2)]
    summary = check(detector(), feeds, tmp_path)
    nodes = sorted(index for region in summary.plan for index in region.nodes)
    assert nodes == list(range(len(nodes)))
    region = region_of(summary, "NonMaxSuppression")
    assert region.backend == "onnxruntime"
    assert "Gather" in region.ops
    shapes = output_shapes(tmp_path)
    assert shapes["selected"] == [-1, 3]
    assert shapes["scores"] == [1, 1, 256]
    assert collage.load(tmp_path / "bundle").benchmark(0.05) > 0


def test_candidates_around_a_detection_head(tmp_path):
    function = imported(detector(), tmp_path)
    graph = function.graph
    op = {node.op: node.index for node in graph.nodes}
    (unit,) = dynamic_shape_groups(graph)
    assert graph.nodes[first(unit)].op == "NonMaxSuppression"
    candidates = find_candidates(function, available_backends(None))
    assert min(
        candidate.inside.bit_count()
        for candidate in candidates
        if candidate.inside >> op["NonMaxSuppression"] & 1
    ) == len(list(indices(unit)))
    assert all(candidate.inside & unit in (0, unit) for candidate in candidates)
    for index, graph_node in enumerate(graph.nodes):
        if graph_node.op == "Conv":
            singles = {c.backend for c in candidates if c.inside == 1 << index}
            assert singles >= {"onnxruntime", "openvino"}
    assert "tvm" in {c.backend for c in candidates if c.inside == 1}
    # OpenVINO takes no unit that the function returns, and everything before it.
    own = [candidate.inside for candidate in candidates if candidate.backend == "openvino"]
    assert not any(inside & unit for inside in own)
    assert max(inside.bit_count() for inside in own) == len(graph) - unit.bit_count()


def test_a_tensor_that_a_kernel_allocated_feeds_a_native_kernel(tmp_path):
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("NonZero", ["r"], ["n"]),
            node("MatMul", ["r", "w"], ["y"]),
        ],
        {"x": ("float32", (4, 6))},
        ["n", "y"],
        {"w": floats(6, 5)},
    )
    function = imported(proto, tmp_path)
    planned = []
    for name, nodes in (("onnxruntime", 0b011), ("tvm", 0b100)):
        (backend,) = available_backends((name,))
        kernel = backend.compile(function, nodes, BuildContext(1))
        planned.append(PlannedKernel(nodes, name, kernel, *region_values(function, nodes)))
    assert planned[0].kernel.allocates
    assemble([FunctionPlan(function, tuple(planned))], 1, tmp_path / "plan.so")
    x = {"x": floats(4, 6)}
    signature = function_signature(function)
    contender = BenchmarkTarget("plan", "executable", tmp_path / "plan.so", signature)
    np.savez(tmp_path / "x.npz", **x)
    process = TargetProcess(contender, tmp_path / "x.npz", ["x"], 1)
    try:
        assert process.reason == ""
        results = process.outputs(tmp_path / "results.npz", ())
    finally:
        process.close()
    reference = expected(tmp_path / "model.onnx", x)
    np.testing.assert_array_equal(results[0], reference["n"])
    np.testing.assert_allclose(results[1], reference["y"], rtol=1e-4, atol=1e-5)


def test_without_onnx_runtime_the_error_says_what_to_add(tmp_path):
    proto = model([node("NonZero", ["x"], ["y"])], {"x": ("float32", (4,))}, ["y"])
    options = collage.Options(threads=1, backends=("tvm",), cache_dir=tmp_path / "store")
    with pytest.raises(SearchError, match=r"NonZero.*add onnxruntime.* to --backends"):
        collage.compile(save(proto, tmp_path), options, output=tmp_path / "bundle")


INNER = {
    "compress": (
        [
            node("Greater", ["s", "half"], ["chosen"]),
            node("Compress", ["x", "chosen"], ["some"], axis=0),
        ],
        {"x": ("float32", (8, 16)), "s": ("float32", (8,))},
    ),
    "unique": ([node("Unique", ["x"], ["some"], axis=0)], {"x": ("float32", (8, 16))}),
    "where": (
        [
            node("Greater", ["x", "half"], ["big"]),
            node("NonZero", ["big"], ["all"]),
            node("Slice", ["all", "zero", "one"], ["row"]),
            node("Squeeze", ["row", "zero"], ["index"]),
            node("Gather", ["x", "index"], ["some"], axis=0),
        ],
        {"x": ("float32", (8, 16))},
    ),
    "sequence": (
        [
            node("SplitToSequence", ["x"], ["parts"], axis=0),
            node("ConcatFromSequence", ["parts"], ["some"], axis=0),
        ],
        {"x": ("float32", (8, 16))},
    ),
}


@pytest.mark.parametrize("kind", list(INNER))
def test_inner_shapes_that_depend_on_data(tmp_path, kind):
    nodes, inputs = INNER[kind]
    proto = model(
        [
            *nodes,
            node("ReduceSum", ["some", "zero"], ["total"], keepdims=1),
            node("MatMul", ["total", "w"], ["m"]),
            node("Relu", ["m"], ["y"]),
        ],
        inputs,
        ["y"],
        {"half": np.float32(0.5), "zero": integers(0), "one": integers(1), "w": floats(16, 4)},
    )
    feeds = [
        {name: floats(*shape, seed=seed) for name, (_, shape) in inputs.items()} for seed in (5, 6)
    ]
    summary = check(proto, feeds, tmp_path)
    assert output_shapes(tmp_path) == {"y": [1, 4]}
    assert region_of(summary, nodes[-1].op_type) is region_of(summary, "ReduceSum")


def test_a_loop_with_scan_outputs(tmp_path):
    value = helper.make_tensor_value_info
    body = graph_body(
        "body",
        [
            node("Add", ["state", "state"], ["doubled"]),
            node("ReduceMax", ["doubled"], ["top"], keepdims=0),
            node("Less", ["top", "bound"], ["again"]),
            node("Identity", ["doubled"], ["scanned"]),
        ],
        [
            value("i", TensorProto.INT64, []),
            value("c", TensorProto.BOOL, []),
            value("state", TensorProto.FLOAT, [3]),
        ],
        [
            value("again", TensorProto.BOOL, []),
            value("doubled", TensorProto.FLOAT, [3]),
            value("scanned", TensorProto.FLOAT, [3]),
        ],
    )
    proto = model(
        [
            node("Abs", ["x"], ["a"]),
            node("Loop", ["trips", "go", "a"], ["end", "states"], body=body),
        ],
        {"x": ("float32", (3,))},
        ["states", "end"],
        {"trips": np.array(40, np.int64), "go": np.array(True), "bound": np.float32(100)},
    )
    feeds = [{"x": np.full(3, size, np.float32)} for size in (1, 30)]
    check(proto, feeds, tmp_path)
    assert output_shapes(tmp_path)["states"] == [-1, 3]


def test_branches_of_different_shapes(tmp_path):
    value = helper.make_tensor_value_info
    longer = graph_body(
        "longer", [node("Concat", ["r", "r"], ["p"], axis=0)], [],
        [value("p", TensorProto.FLOAT, [4, 3])],
    )  # fmt: skip
    flat = graph_body(
        "flat", [node("Flatten", ["r"], ["q"], axis=0)], [], [value("q", TensorProto.FLOAT, [1, 6])]
    )
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("If", ["c"], ["y"], then_branch=longer, else_branch=flat),
        ],
        {"x": ("float32", (2, 3)), "c": ("bool", ())},
        ["y"],
    )
    x = floats(2, 3)
    check(proto, [{"x": x, "c": np.array(c)} for c in (True, False)], tmp_path)


def test_an_output_that_only_onnx_runtime_can_type(tmp_path):
    proto = model(
        [
            node("Relu", ["x"], ["r"]),
            node("Unique", ["r"], ["y", "i", "n"], domain="com.microsoft"),
        ],
        {"x": ("float32", (9,))},
        ["y", "n"],
        domains=["com.microsoft"],
    )
    check(proto, [{"x": floats(9, seed=seed)} for seed in (0, 1)], tmp_path)
    assert output_shapes(tmp_path) == {"y": None, "n": None}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            model([node("SequenceAt", ["x", "i"], ["y"])], {"i": ("int64", ())}, ["y"]),
            r"'x' is a sequence\(tensor\(float32\)\), so only the original model can run",
        ),
        (
            model([node("StringNormalizer", ["x"], ["y"])], {"x": ("object", (2,))}, ["y"]),
            r"'x' is a tensor\(string\), so only the original model can run",
        ),
        (
            model(
                [node("Gather", ["names", "i"], ["y"])], {"i": ("int64", (2,))}, ["y"],
                {"names": np.array([b"cat", b"dog"], object)},
            ),
            r"'y' is a tensor\(string\), so only the original model can run",
        ),
    ],
)  # fmt: skip
def test_what_is_no_tensor_of_numbers_needs_the_original_model(tmp_path, made, message):
    if "sequence" in message:
        x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
        made.graph.input.append(x)
    with pytest.raises(ModelError, match=message):
        compiled(made, tmp_path)

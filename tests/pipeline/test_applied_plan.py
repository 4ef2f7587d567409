"""`--plan`: a reviewed plan is measured and judged, not searched, and refused where it does not fit."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.cli import main

SHAPE = [1, 8, 16, 16]


def save(file, seed=0, channels=8, names=("conv", "relu", "scale", "pool")):
    """Save a convolution, relu, a product and a pooling, with weights of `seed`."""
    random = np.random.default_rng(seed)
    kernel = random.standard_normal((channels, 8, 3, 3)).astype(np.float32)
    factor = random.standard_normal((1, channels, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], names[0], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], names[1]),
        helper.make_node("Mul", ["r", "s"], ["m"], names[2]),
        helper.make_node("GlobalAveragePool", ["m"], ["y"], names[3]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, 1, 1])],
        [numpy_helper.from_array(kernel, "w"), numpy_helper.from_array(factor, "s")],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), file)
    return str(file)


def compile_bundle(model, output, *further, cache):
    times = ["--budget", "5s", "--verify", "0.2s", "--refine", "0s", "--tune", "0s"]
    words = [model, "-o", str(output), "--threads", "1", "--cache-dir", str(cache), *times]
    return main(["compile", *words, "--no-fallback", "--allow-slower", "--json", *further])


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A model, and the plan of its bundle on TVM and ONNX Runtime."""
    folder = tmp_path_factory.mktemp("planned")
    model = save(folder / "m.onnx")
    code = compile_bundle(
        model, folder / "bundle", "--backends", "tvm,onnxruntime", cache=folder / "cache"
    )
    assert code == 0
    return model, folder / "bundle" / "plan.json"


def regions_of(plan):
    return [
        (tuple(region["names"]), region["backend"], region["variant"])
        for region in json.loads(plan.read_text())
    ]


def edited(plan, target, **changes):
    """Write the plan with changes of its first region."""
    regions = json.loads(plan.read_text())
    regions[0].update(changes)
    target.write_text(json.dumps(regions))
    return target


@pytest.mark.parametrize("seed", [0, 1], ids=["the same weights", "other weights"])
def test_a_plan_is_measured_and_judged_without_a_search(planned, tmp_path, capsys, seed):
    _, plan = planned
    model = save(tmp_path / "again.onnx", seed)
    assert (
        compile_bundle(model, tmp_path / "out", "--plan", str(plan), cache=tmp_path / "cache") == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert regions_of(tmp_path / "out" / "plan.json") == regions_of(plan)
    kernels = {(names, backend) for names, backend, _ in regions_of(plan) if backend != "host"}
    assert summary["candidates"]["measured"] <= len(kernels)
    collage.load(tmp_path / "out").check()


def test_a_plan_of_other_nodes_is_refused_with_the_region(planned, tmp_path, capsys):
    _, plan = planned
    other = save(tmp_path / "m.onnx", names=("a", "b", "c", "d"))
    renamed = json.loads(plan.read_text())
    renamed[0].update(ops=["Gemm"] * len(renamed[0]["ops"]))
    (tmp_path / "plan.json").write_text(json.dumps(renamed))
    code = compile_bundle(
        other, tmp_path / "out", "--plan", str(tmp_path / "plan.json"), cache=tmp_path / "cache"
    )
    assert code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "region 0 of main" in error["reason"]
    assert "the model has no such nodes" in error["reason"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backend": "openvino"}, "is not among --backends"),
        ({"backend": "nobody"}, "nobody"),
        ({"variant": "avx1024"}, "no such region of the variant 'avx1024'"),
    ],
)
def test_a_region_that_does_not_fit_here_is_named(planned, tmp_path, capsys, changes, reason):
    model, plan = planned
    file = edited(plan, tmp_path / "plan.json", **changes)
    further = ("--plan", str(file), "--backends", "tvm,onnxruntime")
    assert compile_bundle(model, tmp_path / "out", *further, cache=tmp_path / "cache") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "region 0 of main" in error["reason"]
    assert reason in error["reason"]


def test_a_plan_without_a_node_is_refused(planned, tmp_path, capsys):
    model, plan = planned
    (tmp_path / "plan.json").write_text(json.dumps(json.loads(plan.read_text())[1:]))
    further = ("--plan", str(tmp_path / "plan.json"))
    assert compile_bundle(model, tmp_path / "out", *further, cache=tmp_path / "cache") == 2
    reason = json.loads(capsys.readouterr().out)["error"]["reason"]
    assert "has no region with node" in reason or "has no function main" in reason


@pytest.mark.parametrize("content", ["", "{}", '[{"backend": 3}]', "[" * 10_000])
def test_a_file_that_is_no_plan_is_refused(planned, tmp_path, capsys, content):
    model, _ = planned
    (tmp_path / "plan.json").write_text(content)
    further = ("--plan", str(tmp_path / "plan.json"))
    assert compile_bundle(model, tmp_path / "out", *further, cache=tmp_path / "cache") == 2
    assert "give its plan.json" in capsys.readouterr().out

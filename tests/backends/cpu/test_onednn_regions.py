"""oneDNN over regions: fusion, layouts inside, real models, executables, the rule."""

import os
import random
import subprocess
import sys
import tempfile
from math import pi, sqrt
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi

from benchmarks import call_overhead
from collage.backends.base import BuildContext
from collage.backends.cpu.onednn import OneDnnBackend
from collage.errors import BackendError
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.region import region_onnx, region_values
from collage.graph.index_set import index_set, indices
from collage.rules import PartitionSpec, find_candidates
from collage.rules.regions import maximal_regions
from collage.runtime.blob import pack
from collage.runtime.plugin import load_plugin
from tests.backends import regions
from tests.backends.cpu.onednn_nets import IMAGE, ROWS, check, make, node, number
from tests.frontend.build import floats, integers
from tests.runtime import executables
from tests.support.real_models import DRAWN

BACKEND = OneDnnBackend()
WEIGHTS = {
    "w": floats(16, 16, 3, 3) / 8, "b": floats(16), "v": floats(16, 16, 1, 1) / 4,
    "p": floats(1, 16, 1, 1), "m": floats(8, 8) / 3, "r": floats(8),
    "half": np.float32(0.5), "one": np.float32(1), "three": np.float32(3), "six": np.float32(6),
    "zero": np.float32(0), "root": np.float32(sqrt(2)), "unroot": np.float32(1 / sqrt(2)),
    "cubic": np.float32(0.044715), "scale": np.float32(sqrt(2 / pi)), "quick": np.float32(1.702),
    "n": integers(30, 8), "heads": integers(2, 15, 2, 4), "whole": integers(2, 15, 8),
}  # fmt: skip
CONV = node("Conv", "xwb", "c", pads=[1, 1, 1, 1])
PRODUCT = node("MatMul", "xm", "c")
GELU = [node("Erf", "e", "f"), node("Add", ["f", "one"], "g")]
CUBES = [node("Pow", ["c", "three"], "d"), node("Mul", ["d", "cubic"], "e"), node("Add", "ce", "f"),
         node("Mul", ["f", "scale"], "g"), node("Tanh", "g", "h"),
         node("Add", ["h", "one"], "i")]  # fmt: skip

FUSIONS = {
    "relu": ([CONV, node("Relu", "c")], "relu"),
    "relu6": ([CONV, node("Clip", ["c", "zero", "six"])], "clip"),
    "sigmoid": ([CONV, node("Sigmoid", "c")], "logistic"),
    "leaky relu": ([CONV, node("LeakyRelu", "c")], "relu"),
    "elu": ([CONV, node("Elu", "c")], "elu"),
    "tanh": ([CONV, node("Tanh", "c")], "tanh"),
    "gelu": ([CONV, node("Gelu", "c")], "gelu_erf"),
    "hard swish": ([CONV, node("HardSwish", "c")], "hardswish"),
    "a number": ([PRODUCT, node("Mul", ["c", "three"])], "linear"),
    "a factor per column": ([PRODUCT, node("Mul", "cr")], "mul"),
    "a factor per channel": ([CONV, node("Relu", "c", "d"), node("Mul", "dp")], "relu mul"),
    "a summand after relu": ([CONV, node("Relu", "c", "d"), node("Add", "dp")], "relu add"),
    "a residual and relu": ([CONV, node("Add", "xc", "a"), node("Relu", "a")], "add relu"),
    "silu": ([CONV, node("Sigmoid", "c", "s"), node("Mul", "sc")], "swish"),
    "quick gelu": (
        [CONV, node("Mul", ["c", "quick"], "d"), node("Sigmoid", "d", "s"), node("Mul", "cs")],
        "swish"),
    "hard swish by hard sigmoid": (
        [CONV, node("HardSigmoid", "c", "s", alpha=1 / 6), node("Mul", "cs")], "hardswish"),
    "hard swish by clip": (
        [CONV, node("Add", ["c", "three"], "d"), node("Clip", ["d", "zero", "six"], "e"),
         node("Mul", "ce", "f"), node("Div", ["f", "six"])], "hardswish"),
    "a hard sigmoid of another slope": (
        [CONV, node("HardSigmoid", "c", "s", alpha=0.3), node("Mul", "cs")], None),
    "gelu by division": (
        [PRODUCT, node("Div", ["c", "root"], "e"), *GELU, node("Mul", "cg", "h"),
         node("Mul", ["h", "half"])], "gelu_erf"),
    "gelu by a product": (
        [PRODUCT, node("Mul", ["c", "unroot"], "e"), *GELU, node("Mul", ["half", "g"], "h"),
         node("Mul", "ch")], "gelu_erf"),
    "gelu of a half": (
        [PRODUCT, node("Div", ["c", "root"], "e"), *GELU, node("Mul", ["c", "half"], "h"),
         node("Mul", "hg")], "gelu_erf"),
    "gelu by tanh": (
        [PRODUCT, *CUBES, node("Mul", "ci", "j"), node("Mul", ["j", "half"])], "gelu_tanh"),
    "a bias of a product": ([PRODUCT, node("Add", "rc", "d"), node("Relu", "d")], "relu"),
    "a reshape on the way": (
        [PRODUCT, node("Reshape", ["c", "n"], "d"), node("Add", "dr", "e"), node("Relu", "e")], "relu"),
    "minus the other way round": ([CONV, node("Sub", "xc")], "linear add"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize("variant", BACKEND.variants)
def test_a_product_takes_what_follows(name, variant, tmp_path):
    nodes, posts = FUSIONS[name]
    shape = IMAGE if nodes[0] is CONV else ROWS
    opset = 17 if name.startswith("gelu by") or name == "gelu of a half" else 20
    steps = check(make(tmp_path, nodes, {"x": shape}, WEIGHTS, opset), variant=variant)
    heavy = [step for step in steps if step["op"] != "reshape"]
    if posts is None:
        assert len(heavy) == 2
        return
    assert len(heavy) == 1
    assert [
        post_op.get("eltwise", post_op.get("binary")) for post_op in heavy[0]["post"]
    ] == posts.split()


def test_values_with_two_readers_or_returned_are_not_fused(tmp_path):
    nodes = [CONV, node("Relu", "c", "y"), node("Tanh", "c", "z")]
    function = make(tmp_path, nodes, {"x": IMAGE}, WEIGHTS, outputs=("y", "z"))
    assert [step["op"] for step in check(function)] == ["convolution", "eltwise", "eltwise"]


def test_an_activation_with_outside_readers_is_not_fused(tmp_path):
    nodes = [CONV, node("Sigmoid", "c", "s"), node("Mul", "cs", "y"), node("Tanh", "s", "z")]
    function = make(tmp_path, nodes, {"x": IMAGE}, WEIGHTS, outputs=("y", "z"))
    assert len(check(function)) == 4


BLOCK = [
    node("Conv", "xwb", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "c"),
    node("Conv", "cwb", "d", pads=[1, 1, 1, 1]), node("Conv", "xv", "e"),
    node("Add", "de", "f"), node("Relu", "f", "g"),
    node("Conv", "gwb", "h", pads=[1, 1, 1, 1]), node("Add", "hg", "i"),
    node("MaxPool", "i", "j", kernel_shape=[2, 2], strides=[2, 2]),
    node("GlobalAveragePool", "j", "k"), node("Concat", "jj", "l", axis=1), node("Flatten", "k"),
]  # fmt: skip


@pytest.mark.parametrize("variant", BACKEND.variants)
def test_a_residual_block(variant, tmp_path):
    function = make(tmp_path, BLOCK, {"x": IMAGE}, WEIGHTS, outputs=("y", "l", "g"))
    steps = check(function, variant=variant)
    assert [step["op"] for step in steps].count("convolution") == 4
    assert "binary" not in [step["op"] for step in steps]


def test_attention_moves_nothing(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLLAGE_ONEDNN_VERBOSE", "1")
    nodes = []
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", "xm", [f"{name}0"]),
            node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
        ]
        nodes += [node("Transpose", [f"{name}1"], [f"{name}2"], perm=order)]
    nodes += [
        node("MatMul", ["q2", "k2"], "a"), node("Mul", ["a", "half"], ["b0"]),
        node("Softmax", ["b0"], ["p0"]),
        node("MatMul", ["p0", "v2"], "z"), node("Transpose", "z", "t", perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "whole"], "y"),
    ]  # fmt: skip
    check(make(tmp_path, nodes, {"x": (2, 15, 8)}, WEIGHTS))
    assert "reorder" not in capfd.readouterr().err


@pytest.mark.parametrize("nodes", [0b1, 0b11, 0b110, 0b1100, 0b11111])
@pytest.mark.parametrize("variant", BACKEND.variants)
def test_regions_compute_the_same(nodes, variant, tmp_path):
    regions.check_region(BACKEND, regions.convolutions(tmp_path), nodes, variant)


@pytest.mark.parametrize("name", DRAWN)
def test_regions_of_real_models(name, real_model):
    """The maximal regions, and drawn intervals of supported nodes, on the model's own values."""
    function = real_model(name).functions[0]
    values = reference_values(function, random_inputs(function, 0))
    size = len(function.graph)
    supported = index_set(i for i in range(size) if BACKEND.unsupported(function, i) is None)
    assert supported.bit_count() > 0.9 * size
    draw = random.Random(name)
    drawn = [
        ((1 << draw.randint(2, 20)) - 1) << draw.randrange(size) & supported for _ in range(10)
    ]
    for nodes in [*maximal_regions(function.graph, supported), *drawn]:
        check_values(function, nodes, values)


def check_values(function, nodes, values):
    if not nodes:
        return
    inputs, outputs = region_values(function, nodes)
    kernel = BACKEND.compile(function, nodes, BuildContext(1))
    arrays = [np.full_like(values[name], np.nan) for name in outputs]
    executables.call_kernel(kernel.kind, kernel.blob, [values[name] for name in inputs], arrays)
    for name, value in zip(outputs, arrays, strict=True):
        scale = np.abs(values[name]).max()
        np.testing.assert_allclose(value, values[name], rtol=1e-3, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_saved_executable_computes_the_same(threads, tmp_path):
    function = make(tmp_path, BLOCK, {"x": IMAGE}, WEIGHTS, outputs=("y", "g"))
    nodes = function.graph.everything
    kernel = BACKEND.compile(function, nodes, BuildContext(threads))
    _, outputs = region_values(function, nodes)
    types = [(function.graph.types[name].shape, "float32") for name in outputs]
    module = executables.chain([(kernel.kind, kernel.blob)], [(IMAGE, "float32")], types)
    path = executables.export(module, tmp_path / "model.so")
    x = floats(*IMAGE)
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    expected = session.run(list(outputs), {function.graph.inputs[0]: x})
    for value, reference in zip(executables.run_saved(path, x), expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-4, atol=1e-4)


def test_a_call_costs_less_than_two_microseconds():
    with tempfile.TemporaryDirectory() as folder:
        kernel = call_overhead.compiled(BACKEND, call_overhead.relu(Path(folder)))
        times = [call_overhead.seconds_per_call(kernel, Path(folder), 100) for _ in range(5)]
    assert min(times) < 2e-6


def test_kernels_survive_moved_memory_and_wrong_shapes(tmp_path):
    load_plugin()
    function = make(tmp_path, [CONV, node("Relu", "c")], {"x": IMAGE}, WEIGHTS)
    kernel = BACKEND.compile(function, 0b11, BuildContext(1))
    module = tvm_ffi.get_global_func("collage.create_module")(kernel.kind, "kernel", kernel.blob)
    call = module.get_function("kernel")
    shape = function.graph.types["y"].shape
    results = []
    for value in (floats(*IMAGE), np.zeros(IMAGE, "float32"), floats(*IMAGE)):
        out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        with pytest.raises(
            ValueError, match="onednn kernel: tensor 0 must hold 3168 numbers of float32"
        ):
            call(tvm.runtime.tensor(np.zeros((1, 8), "float32")), out)
        with pytest.raises(ValueError, match="expected 2 tensors, got 1"):
            call(out)
        call(tvm.runtime.tensor(value), out)
        results.append(out.numpy())
    np.testing.assert_array_equal(results[0], results[2])
    bias = np.maximum(WEIGHTS["b"], 0).reshape(1, 16, 1, 1)
    np.testing.assert_allclose(results[1], np.broadcast_to(bias, shape), rtol=1e-6)


def program(*steps, values=((2, 3), (2, 3)), **changes):
    header = {"values": values, "inputs": [0], "outputs": [1], "weights": [], "steps": steps}
    return pack({**header, **changes}, [])


def step(op="eltwise", **changes):
    entry = {
        "op": op,
        "in": [0],
        "out": 1,
        "post": [],
        "algorithm": "relu",
        "alpha": 0.0,
        "beta": 0.0,
    }
    return {**entry, **changes}


WRONG = [
    (pack({}, []), "lacks 'values'"),
    (program(step("fly")), r"step 0 \(fly\): there is no such operator"),
    (program(step(algorithm="fly")), "no algorithm fly"),
    (program(step(**{"in": [7]})), "there is no value 7"),
    (program(), "output 0 is not made"),
    (program(step(**{"in": [1]})), "reads value 1 before it is made"),
    (program(step(), values=((2, 3), (3, 3))), r"step 0 \(eltwise\)"),
    (program(step(), layout="round"), "no layout round"),
    (program(step(), weights=[0]), "1 weights, but 0 tensors"),
]


@pytest.mark.parametrize(("blob", "message"), WRONG)
def test_wrong_programs_are_errors_that_name_the_step(blob, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        executables.call_kernel("onednn", blob, [], [])


def test_erf_is_taken_with_its_activation_only(tmp_path):
    nodes, _ = FUSIONS["gelu by division"]
    function = make(tmp_path, nodes, {"x": ROWS}, WEIGHTS, opset=17)
    erf = next(n.index for n in function.graph.nodes if n.op == "Erf")
    assert BACKEND.unsupported(function, erf) == "oneDNN has no Erf"
    regions_listed = {
        c.inside for c in find_candidates(function, [BACKEND]) if c.backend == "onednn"
    }
    gelu = function.graph.everything & ~1
    assert {gelu, gelu | 1} <= regions_listed
    assert all(inside & gelu == gelu for inside in regions_listed if inside >> erf & 1)
    for inside in regions_listed:
        BACKEND.compile(function, inside, BuildContext(1))
    with pytest.raises(BackendError, match="has no Erf"):
        BACKEND.compile(function, 1 << erf, BuildContext(1))


def test_variants_are_offered_where_their_layout_may_pay(tmp_path):
    function = make(tmp_path, BLOCK, {"x": IMAGE}, WEIGHTS)
    rule = BACKEND.rule(function)
    offered = {
        variant: {
            c.inside for c in rule.candidates(function.graph, PartitionSpec("onednn", variant))
        }
        for variant in BACKEND.variants
    }
    graph = function.graph
    pointwise = next(n.index for n in graph.nodes if n.op == "Conv" and n.inputs[1] == "v")
    convolutions = index_set(n.index for n in graph.nodes if n.op == "Conv")
    assert graph.everything in offered[""]
    assert offered["blocked"] == {region for region in offered[""] if region & convolutions}
    assert offered["plain"]
    assert all(region & convolutions == 1 << pointwise for region in offered["plain"])


def test_the_rule_offers_only_what_compiles(real_model):
    function = real_model("segformer_b0").functions[0]
    candidates = [c for c in find_candidates(function, [BACKEND]) if c.backend == "onednn"]
    draw = random.Random(1)
    for candidate in draw.sample(candidates, 60):
        assert all(
            BACKEND.unsupported(function, i) is None or candidate.sub_graph.size > 1
            for i in indices(candidate.inside)
        )
        BACKEND.compile(function, candidate.inside, BuildContext(1), variant=candidate.variant)


def test_numbers_are_no_binary_steps(tmp_path):
    function = make(tmp_path, [node("Add", ["x", "c"])], {"x": ROWS}, number(2))
    assert [step["op"] for step in check(function)] == ["eltwise"]


THREADS = """
import ctypes, os
import numpy as np
from collage.runtime.plugin import load_plugin
from tests.runtime import executables
import tvm_ffi
load_plugin()
blob = open({path!r}, "rb").read()
before = len(os.listdir("/proc/self/task"))
x, y = np.ones({shape}, "float32"), np.zeros({result}, "float32")
executables.call_kernel("onednn", blob, [x], [y])
print(len(os.listdir("/proc/self/task")) - before)
gomp = ctypes.CDLL("libgomp.so.1")
print(gomp.omp_get_max_threads())
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_kernel_threads_wait_passively_and_change_no_setting(threads, tmp_path):
    shape = (1, 16, 64, 64)
    function = make(tmp_path, [CONV, node("Relu", "c")], {"x": shape}, WEIGHTS)
    path = tmp_path / "kernel.blob"
    path.write_bytes(BACKEND.compile(function, 0b11, BuildContext(threads)).blob)
    code = THREADS.format(path=str(path), shape=shape, result=shape)
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "OMP_DISPLAY_ENV": "true"}
    environment.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [str(threads - 1), "3"]
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


def test_a_masked_softmax_takes_minus_infinity(tmp_path):
    mask = np.where(np.tri(5, 8, dtype=bool), 0, -np.inf).astype("float32")
    nodes = [PRODUCT, node("Add", ["c", "mask"], "d"), node("Softmax", "d")]
    check(make(tmp_path, nodes, {"x": ROWS}, {**WEIGHTS, "mask": mask}))


def test_a_bound_on_one_side_leaves_infinity_on_the_other(tmp_path):
    function = make(tmp_path, [node("Max", ["x", "c"])], {"x": (3,)}, number(0))
    kernel = BACKEND.compile(function, 1, BuildContext(1))
    y = np.zeros(3, "float32")
    x = np.array([np.inf, -np.inf, 1], "float32")
    executables.call_kernel(kernel.kind, kernel.blob, [x], [y])
    np.testing.assert_array_equal(y, [np.inf, 0, 1])

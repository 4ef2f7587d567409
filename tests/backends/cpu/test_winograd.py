"""Winograd convolutions against ONNX Runtime, in every variant and on every instruction set."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.backends.base import BuildContext
from collage.backends.common.native_kernels import PANEL, by_panels
from collage.backends.cpu.winograd import WinogradBackend
from collage.backends.cpu.winograd.convolution import describe
from collage.backends.cpu.winograd.weights import filter_matrix, transformed_weights
from collage.errors import BackendError
from collage.frontend import Function, import_model
from collage.frontend.region import region_onnx, region_values
from collage.graph.dataflow import TensorType
from collage.graph.index_set import indices
from collage.rules import find_candidates
from collage.runtime.blob import pack, unpack
from tests.runtime import executables

INSTRUCTIONS = ("avx512", "avx2", "plain")
VARIANTS = WinogradBackend.variants


@dataclass(frozen=True)
class Case:
    """A convolution: shape of x [batch, in, height, width], pads [top, left, bottom, right]."""

    x: tuple[int, int, int, int]
    out: int
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    bias: bool = True
    attributes: dict = field(default_factory=dict)
    kernel: tuple[int, ...] = (3, 3)

    @property
    def y(self) -> tuple[int, int, int, int]:
        pad_top, pad_left, pad_bottom, pad_right = self.pads
        return (
            self.x[0],
            self.out,
            self.x[2] + pad_top + pad_bottom - 2,
            self.x[3] + pad_left + pad_right - 2,
        )


def weight(name: str, values: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def model(path, case: Case, epilogue=(), outputs=("y",), others=()) -> Function:
    """conv(x) is c; the nodes of `epilogue` follow; r is a further input of c's shape."""
    random = np.random.default_rng(3)
    groups = case.attributes.get("group", 1)
    weights = [
        weight("w", random.standard_normal((case.out, case.x[1] // groups, *case.kernel)) / 4),
        weight("b", random.standard_normal(case.out)),
        weight("low", -0.5), weight("high", 1.5),
    ]  # fmt: skip
    operands = ["x", "w", "b"][: 2 + case.bias]
    attributes = {"pads": list(case.pads), **case.attributes}
    if "auto_pad" in attributes:
        del attributes["pads"]
    first = "c" if epilogue else "y"
    nodes = [helper.make_node("Conv", operands, [first], **attributes), *epilogue]
    read = {name for node in nodes for name in node.input}

    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    inputs = [info("x", case.x)] + [info("r", case.y)] * ("r" in read)
    graph = helper.make_graph(
        nodes, "model", inputs, [info(name, None) for name in outputs],
        [tensor for tensor in weights if tensor.name in read],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path / "model.onnx")
    return import_model(path / "model.onnx", work_dir=path).functions[0]


def everything(function: Function) -> int:
    return function.graph.everything


def feeds_of(function: Function, nodes: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    names, _ = region_values(function, nodes)
    return {n: random.standard_normal(function.graph.types[n].shape, np.float32) for n in names}


def expected(function: Function, nodes: int, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(region_onnx(function, nodes).SerializeToString())
    return session.run(None, feeds)[0]


def blob_of(function: Function, nodes: int, variant: str, **header) -> bytes:
    entries, tensors = unpack(
        WinogradBackend().compile(function, nodes, BuildContext(1), variant).blob
    )
    del entries["tensors"]
    return pack({**entries, **header}, tensors)


def run(blob: bytes, feeds: dict[str, np.ndarray], like: np.ndarray) -> np.ndarray:
    result = np.full_like(like, np.nan)
    executables.call_kernel("winograd", blob, list(feeds.values()), [result])
    return result


def check(function: Function, nodes: int, variant: str, **header) -> None:
    feeds = feeds_of(function, nodes)
    reference = expected(function, nodes, feeds)
    result = run(blob_of(function, nodes, variant, **header), feeds, reference)
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


@pytest.fixture(params=INSTRUCTIONS)
def instructions(request, tmp_path):
    function = model(tmp_path, Case((1, 1, 3, 3), 1))
    try:
        check(function, everything(function), "f2", instructions=request.param)
    except ValueError as error:
        assert "this machine has no" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    return request.param


CASES = [
    Case((1, 16, 8, 8), 32),
    Case((1, 1, 3, 3), 1, (0, 0, 0, 0)),
    Case((1, 1, 1, 1), 1),
    Case((1, 3, 7, 5), 2, bias=False),
    Case((2, 19, 9, 13), 33),
    Case((3, 8, 14, 6), 31, (0, 1, 1, 0)),
    Case((1, 5, 6, 40), 17, (2, 3, 0, 1)),
    Case((1, 33, 4, 130), 8, (1, 0, 0, 2)),
    Case((1, 7, 31, 31), 48, attributes={"auto_pad": "SAME_UPPER"}),
    Case((1, 2, 5, 4), 65, (20, 20, 20, 20)),
    Case((1, 64, 50, 50), 24),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.x}-{case.out}-{case.pads}")
def test_shapes(case, variant, instructions, tmp_path):
    function = model(tmp_path, case)
    check(function, everything(function), variant, instructions=instructions)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], **attributes)


EPILOGUES = {
    "relu": [node("Relu", "c", "y")],
    "clip": [node("Clip", "c low high", "y")],
    "clip_low": [node("Clip", "c low", "y")],
    "leaky": [node("LeakyRelu", "c", "y", alpha=0.2)],
    "sigmoid": [node("Sigmoid", "c", "y")],
    "hard_sigmoid": [node("HardSigmoid", "c", "y", alpha=0.3, beta=0.4)],
    "hard_swish": [node("HardSwish", "c", "y")],
    "swish": [node("Sigmoid", "c", "s"), node("Mul", "c s", "y")],
    "swish_turned": [node("Sigmoid", "c", "s"), node("Mul", "s c", "y")],
    "gated": [node("HardSigmoid", "c", "s"), node("Mul", "c s", "y")],
    "add": [node("Add", "c r", "y")],
    "add_turned": [node("Add", "r c", "y")],
    "add_relu": [node("Add", "c r", "s"), node("Relu", "s", "y")],
    "relu_add": [node("Relu", "c", "s"), node("Add", "r s", "y")],
    "swish_add_clip": [
        node("Sigmoid", "c", "s"), node("Mul", "c s", "t"), node("Add", "t r", "u"),
        node("Clip", "u low high", "y"),
    ],
    "add_swish": [node("Add", "c r", "u"), node("Sigmoid", "u", "s"), node("Mul", "u s", "y")],
    "add_x": [node("Add", "c x", "y")],
}  # fmt: skip


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name, instructions, tmp_path):
    function = model(tmp_path, Case((2, 18, 9, 11), 18), EPILOGUES[name])
    for variant in VARIANTS:
        check(function, everything(function), variant, instructions=instructions)


@pytest.mark.parametrize("name", EPILOGUES)
def test_every_epilogue_is_a_candidate_in_every_variant(name, tmp_path):
    function = model(tmp_path, Case((2, 18, 9, 11), 18), EPILOGUES[name])
    candidates = find_candidates(function, [WinogradBackend()])
    all_nodes = everything(function)
    assert sorted(c.variant for c in candidates if c.inside == all_nodes) == sorted(VARIANTS)


def test_only_regions_that_compile_are_candidates(tmp_path):
    function = model(tmp_path, Case((1, 4, 6, 6), 4), EPILOGUES["swish_add_clip"])
    candidates = [c for c in find_candidates(function, [WinogradBackend()]) if not c.is_host]
    lengths = sorted(c.inside.bit_count() for c in candidates if c.variant == "f4")
    assert lengths == [1, 3, 4, 5]
    for candidate in candidates:
        assert describe(function, candidate.inside)
        assert next(indices(candidate.inside)) == 0


REFUSALS = [
    (Case((1, 4, 6, 6), 4, (0, 0, 0, 0), kernel=(1, 1)), "kernel is 1x1, not 3x3"),
    (Case((1, 4, 6, 6), 4, (0, 0, 0, 0), kernel=(3, 1)), "kernel is 3x1, not 3x3"),
    (Case((1, 4, 6, 6), 4, attributes={"strides": [2, 2]}), "strides are [2, 2], not [1, 1]"),
    (Case((1, 4, 6, 6), 4, attributes={"dilations": [2, 1]}), "dilations are [2, 1]"),
    (Case((1, 4, 6, 6), 4, attributes={"group": 2}), "has 2 groups"),
]


@pytest.mark.parametrize(("case", "reason"), REFUSALS, ids=[reason for _, reason in REFUSALS])
def test_it_says_why_not(case, reason, tmp_path):
    function = model(tmp_path, case)
    backend = WinogradBackend()
    assert reason in (backend.unsupported(function, 0) or "")
    with pytest.raises(BackendError, match=reason.split("[")[0]):
        backend.compile(function, 1, BuildContext(1), "f4")


def test_computed_weights_are_refused(tmp_path):
    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    inputs = [info("x", (1, 2, 5, 5)), info("w", (2, 2, 3, 3))]
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "model", inputs, [info("y", None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(proto, tmp_path / "model.onnx")
    function = import_model(tmp_path / "model.onnx", work_dir=tmp_path).functions[0]
    assert "computed, not constant" in (WinogradBackend().unsupported(function, 0) or "")


def test_other_types_are_refused(tmp_path):
    function = model(tmp_path, Case((1, 4, 6, 6), 4))
    halves = {n: TensorType(t.shape, "float16") for n, t in function.graph.types.items()}
    function = replace(function, graph=replace(function.graph, types=halves))
    assert "float16, not in float32" in (WinogradBackend().unsupported(function, 0) or "")


def test_other_nodes_need_a_convolution_before_them(tmp_path):
    function = model(tmp_path, Case((1, 4, 6, 6), 4), EPILOGUES["relu"])
    reason = WinogradBackend().unsupported(function, 1)
    assert reason == "Relu is only taken right after a 3x3 convolution"


def test_a_value_needed_outside_is_refused(tmp_path):
    function = model(tmp_path, Case((1, 4, 6, 6), 4), EPILOGUES["relu"], outputs=("y", "c"))
    with pytest.raises(BackendError, match="needed outside"):
        WinogradBackend().compile(function, 0b11, BuildContext(1), "f4")
    candidates = find_candidates(function, [WinogradBackend()])
    assert {c.inside for c in candidates if not c.is_host} == {0b1}


def test_a_broadcast_addition_is_no_residual(tmp_path):
    epilogue = [helper.make_node("GlobalAveragePool", ["r"], ["p"]), node("Add", "c p", "y")]
    function = model(tmp_path, Case((1, 4, 6, 6), 4), epilogue)
    conv, add = (
        next(n.index for n in function.graph.nodes if n.op == op) for op in ("Conv", "Add")
    )
    with pytest.raises(BackendError, match="Add cannot be done together"):
        describe(function, 1 << conv | 1 << add)


def test_an_unknown_variant_is_refused(tmp_path):
    function = model(tmp_path, Case((1, 4, 6, 6), 4))
    with pytest.raises(BackendError, match="no variant 'f8'"):
        WinogradBackend().compile(function, 1, BuildContext(1), "f8")


def test_a_blob_that_does_not_fit_is_refused(tmp_path):
    function = model(tmp_path, Case((1, 4, 6, 6), 4))
    like = np.zeros((1, 4, 6, 6), np.float32)
    with pytest.raises(ValueError, match="do not fit its header"):
        run(blob_of(function, 1, "f4", channels_in=5), feeds_of(function, 1), like)
    with pytest.raises(ValueError, match="no tile 3"):
        run(blob_of(function, 1, "f4", tile=3), feeds_of(function, 1), like)
    with pytest.raises(ValueError, match="expected 2 tensors, got 1"):
        run(blob_of(function, 1, "f4"), {}, like)


THREADED = [Case((2, 20, 40, 40), 40), Case((1, 96, 7, 7), 100), Case((1, 8, 28, 28), 8)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", THREADED, ids=lambda case: f"{case.x}-{case.out}")
def test_threads_change_nothing(case, variant, tmp_path):
    function = model(tmp_path, case, EPILOGUES["add_relu"])
    nodes = everything(function)
    feeds = feeds_of(function, nodes)
    like = expected(function, nodes, feeds)
    alone = run(blob_of(function, nodes, variant, threads=1), feeds, like)
    for threads in (2, 3):
        together = run(blob_of(function, nodes, variant, threads=threads), feeds, like)
        np.testing.assert_array_equal(together, alone)


def test_kernels_run_side_by_side(tmp_path):
    """One kernel at a time has the helpers; the others then do their work alone."""
    function = model(tmp_path, THREADED[1], EPILOGUES["add_relu"])
    nodes = everything(function)
    feeds = feeds_of(function, nodes)
    blob = blob_of(function, nodes, "f4", threads=2)
    like = expected(function, nodes, feeds)
    with ThreadPoolExecutor(4) as callers:
        results = list(callers.map(lambda _: run(blob, feeds, like), range(40)))
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    np.testing.assert_allclose(results[0], like, rtol=0, atol=1e-5 * np.abs(like).max())


def test_a_forked_process_has_threads_of_its_own(tmp_path):
    function = model(tmp_path, THREADED[1])
    feeds = feeds_of(function, 1)
    blob = blob_of(function, 1, "f4", threads=2)
    reference = run(blob, feeds, expected(function, 1, feeds))
    child = os.fork()
    if child == 0:
        same = np.array_equal(run(blob, feeds, reference), reference)
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 20
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended[0]:  # it waits for threads that it has not got
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_a_saved_executable_loads_back(tmp_path):
    function = model(tmp_path, Case((1, 6, 10, 12), 6), EPILOGUES["add_relu"])
    nodes = everything(function)
    feeds = feeds_of(function, nodes)
    reference = expected(function, nodes, feeds)
    kernel = ("winograd", blob_of(function, nodes, "f4"))
    types = [(value.shape, "float32") for value in feeds.values()]
    chain = executables.chain([kernel], types, [(reference.shape, "float32")])
    path = executables.export(chain, tmp_path / "model.so")
    (result,) = executables.run_saved(path, *feeds.values())
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


def test_a_bundle_of_it_needs_no_vendor_library(tmp_path):
    model(tmp_path, Case((1, 32, 24, 24), 32), EPILOGUES["relu"])
    options = collage.Options(
        threads=1, backends=("winograd",), cache_dir=tmp_path / "store", verify_s=0.2,
        measure_budget_s=20, fallback=False, allow_slower=True,
    )  # fmt: skip
    summary = collage.compile(tmp_path / "model.onnx", options, output=tmp_path / "bundle")
    assert {region.backend for region in summary.plan} == {"winograd"}
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert manifest["libraries"] == {}


@pytest.mark.parametrize("tile", [2, 4])
def test_the_filter_matrix_evaluates_at_the_points(tile):
    matrix = filter_matrix(tile)
    assert matrix.shape == (tile + 2, 3)
    assert matrix[-1].tolist() == [0, 0, 1]
    assert np.linalg.matrix_rank(matrix) == 3


def test_weights_are_packed_by_panels():
    weights = np.zeros((PANEL + 1, 2, 3, 3), np.float32)
    weights[PANEL, 1] = 1
    packed = transformed_weights(weights, 2)
    assert packed.shape == (2, 16, 2, PANEL)
    assert np.count_nonzero(packed[0]) == 0
    assert np.count_nonzero(packed[1, :, 1, 0]) == np.count_nonzero(packed)
    assert np.argwhere(by_panels(weights)).tolist() == [[1, 1, tap, 0] for tap in range(9)]


def test_it_is_available_with_its_revision():
    availability = WinogradBackend().availability()
    assert availability.available or "AVX2" in availability.reason
    assert not availability.available or availability.libraries["instructions"] in INSTRUCTIONS

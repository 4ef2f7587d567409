import numpy as np
import pytest
import tvm_ffi

from collage.backends.base import BuildContext
from collage.backends.cpu.control_flow import ControlFlowBackend
from collage.errors import BackendError
from collage.frontend import bodies, importer
from collage.rules.candidates import find_candidates
from collage.runtime.blob import pack, unpack
from tests.support import control_flow_models as models
from tests.support.driven_model import DrivenModel, planned_kernels

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)


def trips(count):
    return np.array(count, np.int64)


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    return DrivenModel(models.LOOP, tmp_path_factory.mktemp("loop"))


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_a_loop_runs_as_often_as_its_input_says(loop, count):
    assert [kernel.backend for kernel in loop_kernels(loop)] == ["tvm", "control_flow", "tvm"]
    loop.check(x=X, trips=trips(count))


def loop_kernels(loop):
    return planned_kernels(loop.function, loop.folder)


def test_stacked_results_have_a_row_for_each_turn(tmp_path):
    driven = DrivenModel(models.SCAN_OUTPUT, tmp_path)
    never, early = np.float32(9), np.float32(-9)
    for count, limit, rows in ((4, never, 4), (4, early, 1), (0, never, 0)):
        outputs = driven.check(x=X, trips=trips(count), limit=np.array(limit))
        assert outputs["rows"].shape == (rows, 2, 8)


def test_operators_behind_a_loop_of_unknown_length_run(tmp_path):
    driven = DrivenModel(models.READ_ROWS, tmp_path)
    assert [kernel.backend for kernel in loop_kernels(driven)] == ["control_flow", "onnxruntime"]
    for count in (0, 1, 7):
        driven.check(x=X, trips=trips(count))


def test_constant_turns_give_results_of_known_shape(tmp_path):
    driven = DrivenModel(models.CONSTANT_TURNS, tmp_path)
    stacked = driven.function.graph.nodes[0].outputs[-1]
    assert driven.function.graph.types[stacked].shape == (3, 2, 8)
    driven.check(x=X)


@pytest.mark.parametrize("text", [models.BRANCHES, models.PASSING_BRANCH])
def test_an_if_runs_the_branch_of_its_condition(text, tmp_path):
    driven = DrivenModel(text, tmp_path)
    for condition in (True, False):
        driven.check(x=X, condition=np.array(condition))


def test_a_scan_reads_backwards_and_stacks_along_an_axis(tmp_path):
    steps = np.random.default_rng(2).standard_normal((5, 2, 8)).astype(np.float32)
    driven = DrivenModel(models.SCAN, tmp_path)
    assert [kernel.backend for kernel in loop_kernels(driven)] == ["control_flow"]
    driven.check(x=X, steps=steps)


def test_a_loop_within_a_loop_is_driven_too(tmp_path):
    driven = DrivenModel(models.NESTED, tmp_path)
    (outer,) = driven.function.bodies
    kernels = planned_kernels(outer.function, driven.folder)
    assert [kernel.backend for kernel in kernels] == ["control_flow", "tvm"]
    for count in (0, 3):
        driven.check(x=X, trips=trips(count))


@pytest.mark.parametrize("text", [models.GROWING, models.SHAPES_DIFFER])
def test_a_node_without_fixed_shapes_stays_whole(text, tmp_path):
    driven = DrivenModel(text, tmp_path)
    assert not driven.function.bodies
    assert any("stays whole" in note for note in driven.model.notes)
    assert [kernel.backend for kernel in loop_kernels(driven)] == ["onnxruntime"]


def test_candidates_are_the_nodes_with_plans(loop):
    backend = ControlFlowBackend(loop.folder / "bodies", "main")
    candidates = find_candidates(loop.function, [backend])
    assert [(c.inside, c.variant) for c in candidates if not c.is_host] == [(0b10, "")]
    assert backend.unsupported(loop.function, 0) == "no control flow"
    assert ControlFlowBackend().unsupported(loop.function, 1) == "its body is not partitioned"


def test_other_plans_are_another_identity(loop):
    folder = loop.folder / "bodies"
    identities = {name: ControlFlowBackend(folder, name).identity for name in ("main", "other")}
    assert len({ControlFlowBackend().identity, *identities.values()}) == 3


def test_an_unknown_plan_is_refused(loop):
    context = BuildContext(1, bodies_dir=loop.folder / "bodies")
    with pytest.raises(BackendError, match="no plan 'second'"):
        ControlFlowBackend().compile(loop.function, 0b10, context, "second")
    with pytest.raises(BackendError, match="single nodes"):
        ControlFlowBackend().compile(loop.function, 0b110, context)


@pytest.mark.parametrize(
    ("entry", "value", "reason"),
    [
        ("arguments", 1, "names value 1 of 1"),
        ("trips", [0, 7], "names value 7 of 3"),
        ("bodies", [], "not one body"),
        ("outputs", [3], "'outputs' is 3"),
        ("states", [], "'inputs' names value 2 of 2"),
        ("rows", [{"dtype": "int8", "shape": [], "axis": 0, "backwards": 0}], "not 3"),
        ("iteration", [4], "no shape of one number"),
    ],
)
def test_a_damaged_blob_is_refused(loop, entry, value, reason):
    kernel = loop_kernels(loop)[1].kernel
    header, tensors = unpack(kernel.blob)
    del header["tensors"]
    blob = pack({**header, entry: value}, tensors)
    module = tvm_ffi.get_global_func("collage.create_module")("loop", "kernel", blob)
    with pytest.raises(ValueError, match=reason):
        module.get_function("kernel")


def test_an_image_that_is_no_library_is_refused(loop):
    header, tensors = unpack(loop_kernels(loop)[1].kernel.blob)
    del header["tensors"]
    tensors[header["images"][0]] = np.zeros(64, np.uint8)
    module = tvm_ffi.get_global_func("collage.create_module")("loop", "k", pack(header, tensors))
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        module.get_function("k")


@pytest.mark.parametrize("limit", ["MAX_NODES", "MAX_BODIES"])
def test_beyond_a_limit_nodes_stay_whole(limit, tmp_path, monkeypatch):
    module = {"MAX_NODES": bodies, "MAX_BODIES": importer}[limit]
    monkeypatch.setattr(module, limit, 1)
    driven = DrivenModel(models.TWO_LOOPS, tmp_path)
    assert len(driven.function.bodies) == 1
    assert sum("stays whole: only 1" in note for note in driven.model.notes) == 1
    driven.check(x=X, trips=trips(2))


def test_an_unexpected_failure_leaves_the_node_whole(tmp_path, monkeypatch):
    def fail(model):
        raise KeyError("no such value")

    monkeypatch.setattr(importer, "strip_passed_on", fail)
    driven = DrivenModel(models.LOOP, tmp_path)
    assert not driven.function.bodies
    assert any("stays whole" in note for note in driven.model.notes)
    driven.check(x=X, trips=trips(2))

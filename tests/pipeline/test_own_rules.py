"""Every kind of rule and combiner reaches the executable, through backends and `with_rule`."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import collage
from collage.backends.registry import with_rule
from collage.graph.op_pattern import OpPatternKind
from collage.pipeline import bundle_stage
from collage.rules import (
    FUSE_OPS_KINDS,
    AllSimple,
    ByAnchor,
    ByKind,
    Combine,
    Composite,
    DFPattern,
    OpCallByKind,
    OpPredicate,
    PartitionRule,
    Primitive,
    Union,
    op,
)
from tests.backends.labelled import TwoRelusBackend
from tests.test_user_backend import save_model

ANY = ByKind(OpPatternKind.OUT_ELEMWISE_FUSABLE, OpPatternKind.OUT_ELEMWISE_FUSABLE)


@pytest.fixture
def reports(monkeypatch):
    """The report of every compile of the test."""
    built, build = [], bundle_stage.build_report
    monkeypatch.setattr(
        bundle_stage,
        "build_report",
        lambda *a, **named: built.append(build(*a, **named)) or built[-1],
    )
    return built


@pytest.fixture
def compiled(tmp_path, reports):
    """Return a function that compiles nodes with backends, checks the numbers, and returns the report."""

    def run(nodes, backends, weights=()):
        model = save_model(tmp_path / "model.onnx", nodes, weights)
        options = collage.Options(
            backends=backends, threads=1, workers=1, cache_dir=tmp_path / "store",
            measure_budget_s=20, refine_s=0, tune_s=0, verify_s=0.1, fallback=False,
            allow_slower=True,
        )  # fmt: skip
        collage.compile(model, options, output=tmp_path / "bundle")
        x = np.random.default_rng(3).standard_normal((4, 32)).astype("float32")
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        y = collage.load(tmp_path / "bundle").run({"x": x})["y"]
        np.testing.assert_allclose(y, session.run(["y"], {"x": x})[0], rtol=1e-4, atol=1e-5)
        return reports[-1].functions[0]

    return run


def considered(function, backend):
    """Nodes, variant with label, and state of every listed candidate of a backend."""
    return {
        (candidate.nodes, candidate.variant, str(candidate.state))
        for candidate in function.considered
        if candidate.backend == backend
    }


RELU_TANH = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Tanh", ["r"], ["y"])]


def test_each_label_is_measured_and_the_right_one_ships(compiled):
    """The user's rule joins what two labels compute: one kernel with two calls."""

    def joined(function):
        table = [
            Composite(name, DFPattern(name, op(operator)))
            for name, operator in (("right", "Relu"), ("half", "Relu"), ("tanh", "Tanh"))
        ]
        return Primitive(Combine(Union(tuple(table)), (ANY,), max_nodes=2))

    function = compiled(RELU_TANH, (with_rule(TwoRelusBackend(), joined),))
    assert considered(function, "two-relus") >= {
        ((0,), "right", "valid"),
        ((0,), "half", "invalid"),
        ((1,), "tanh", "valid"),
        ((0, 1), "0=right 1=tanh", "valid"),
        ((0, 1), "0=half 1=tanh", "invalid"),
    }
    assert {region.variant for region in function.regions} <= {"right", "tanh", "0=right 1=tanh"}


SIBLINGS = [
    helper.make_node("MatMul", ["x", "w1"], ["a"]),
    helper.make_node("MatMul", ["x", "w2"], ["b"]),
    helper.make_node("Add", ["a", "b"], ["s"]),
    helper.make_node("Relu", ["s"], ["y"]),
]
WEIGHTS = [("w1", (32, 32)), ("w2", (32, 32))]


def by_kinds(function):
    """TVM's fusion, written out: fusable operators, joined by their kinds, each group one kernel."""
    return Primitive(
        Combine(OpCallByKind(), (AllSimple(FUSE_OPS_KINDS),), max_nodes=3), codegen=False
    )


def by_predicate(function):
    """Operator-based offloading: single operators by a predicate, joined with anything."""
    products = OpPredicate(
        lambda graph, index: None if graph.nodes[index].op != "Relu" else "relu is another's"
    )
    return Primitive(Combine(products, (ANY,), max_nodes=3))


def by_anchors(function):
    """Both products of x in one kernel."""
    return Combine(OpCallByKind(), (ByAnchor(horizontal=True),), keeps_parts=False)


@pytest.mark.full
@pytest.mark.parametrize(
    ("backend", "rule", "expected"),
    [
        ("tvm", by_kinds, {(2, 3), (1, 2, 3)}),
        ("onnxruntime", by_predicate, {(0, 2), (1, 2), (0, 1, 2)}),
        ("onnxruntime", by_anchors, {(0, 1)}),
    ],
)
def test_rules_of_users_reach_the_executable(compiled, backend, rule, expected):
    function = compiled(SIBLINGS, (with_rule(backend, rule),), WEIGHTS)
    states = {nodes: state for nodes, _, state in considered(function, backend)}
    assert expected <= {nodes for nodes in states if len(nodes) > 1}
    assert {states[nodes] for nodes in expected} <= {"valid", "unmeasured"}
    assert "valid" in {states[nodes] for nodes in expected}


@pytest.mark.full
def test_adjacent_regions_of_the_plan_are_joined_and_measured(compiled):
    """The rule lists single nodes only; the union is measured after the search."""

    class PlainVariant(PartitionRule):
        """Regions are joined within a variant, and noise must not choose another for a neighbour."""

        def candidates(self, graph, spec):
            return [] if spec.variant else single_nodes.candidates(graph, spec)

    single_nodes = Primitive(OpPredicate(lambda graph, index: None))

    function = compiled(
        SIBLINGS, (with_rule("onnxruntime", lambda function: PlainVariant()),), WEIGHTS
    )
    states = {nodes: state for nodes, _, state in considered(function, "onnxruntime")}
    assert states[0, 1, 2, 3] == "valid"

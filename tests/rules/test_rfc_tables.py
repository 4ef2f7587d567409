"""Candidate sets of upstream's partition_rule_test.cc, with its lost fan-in unions added.

Nodes of the gelu extract: d dense, b bias, r reshape, p power, m mul(p), a add(r, m), n mul(a),
t tanh, h half of r, u t + 1, o = h * u; W and C are the weight and bias constants. Scalars are no
nodes. Upstream finds 29, 39 and 19; the names with LOST_UPSTREAM hold the rest.
"""

import pytest

from collage.graph.builder import GraphBuilder
from collage.graph.index_set import indices
from collage.graph.op_pattern import OpPatternKind as Kind
from collage.graph.sub_graph import SubGraphConfig
from collage.rules import (
    AllSimple,
    ByKind,
    Combine,
    Composite,
    Constants,
    DFPattern,
    Host,
    OnlyValid,
    OpCallByKind,
    PartitionSpec,
    Primitive,
    TupleArg,
    TupleProj,
    Union,
    op,
    wildcard,
)
from collage.rules.combine import FUSE_OPS_KINDS

SPEC = PartitionSpec("test")
DENSE_TO_BROADCAST = ByKind(Kind.OUT_ELEMWISE_FUSABLE, Kind.BROADCAST)
SINGLES = set("dbrpmanthuo")
BY_KIND = {
    "db", "rh", "rp", "rph", "rpm", "rpmh", "ho", "pm", "ma", "an", "nt", "tu", "uo",
    "pma", "man", "ant", "ntu", "tuo",
}  # fmt: skip
BY_KIND_LOST_UPSTREAM = {"huo", "htuo"}
MIXED = {"Wd", "Cb", "br", "brh", "brp", "Wdb", "WdCb", "Cbr", "Cbrh", "Cbrp"}
MIXED_LOST_UPSTREAM = {"dCb", "brph", "Cbrph"}
ONLY_VALID = {"db", "ho", "pm", "ma", "an", "nt", "tu", "uo"}
ONLY_VALID_LOST_UPSTREAM = {"huo"}


def _gelu():
    graph = GraphBuilder()
    graph.add("constant", name="W")
    graph.add("constant", name="C")
    d = graph.add("MatMul", graph.input("x"), "W", name="d")
    r = graph.add("Reshape", graph.add("Add", d, "C", name="b"), name="r")
    m = graph.add("Mul", graph.add("Pow", r, graph.weight(), name="p"), graph.weight(), name="m")
    a = graph.add("Add", r, m, name="a")
    t = graph.add("Tanh", graph.add("Mul", a, graph.weight(), name="n"), name="t")
    h = graph.add("Mul", r, graph.weight(), name="h")
    graph.add("Mul", h, graph.add("Add", t, graph.weight(), name="u"), name="o")
    return graph.build()


def _groups(rule, graph):
    names = [node.name for node in graph.nodes]
    return [
        frozenset(names[index] for index in indices(candidate.inside))
        for candidate in rule.candidates(graph, SPEC)
    ]


def _check(rule, graph, *expected):
    """Compare without regard to order, and check that no group occurs twice."""
    groups = _groups(rule, graph)
    expected_groups = {frozenset(group) for groups in expected for group in groups}
    assert len(groups) == len(set(groups))
    assert set(groups) == expected_groups
    return len(groups)


def test_gelu_combined_by_kind():
    rule = Combine(OpCallByKind(), (DENSE_TO_BROADCAST,), max_depth=3)
    assert _check(rule, _gelu(), SINGLES, BY_KIND, BY_KIND_LOST_UPSTREAM) == 31


def test_gelu_combined_by_kinds_and_constants():
    combiners = (AllSimple(FUSE_OPS_KINDS), Constants())
    rule = Combine(OpCallByKind(), combiners, max_depth=3)
    lost = BY_KIND_LOST_UPSTREAM | MIXED_LOST_UPSTREAM
    assert _check(rule, _gelu(), SINGLES, BY_KIND, MIXED, lost) == 44


def test_gelu_only_valid():
    combined = Combine(OpCallByKind(), (DENSE_TO_BROADCAST,), max_depth=3)
    rule = OnlyValid(combined, SubGraphConfig(max_exits=1, max_depth=2, allow_escaping=False))
    groups = set(_groups(rule, _gelu()))
    assert groups == {frozenset(group) for group in SINGLES | ONLY_VALID | ONLY_VALID_LOST_UPSTREAM}
    assert len(groups) == 20


def test_gelu_constants():
    rule = Combine(OpCallByKind(), (Constants(),))
    assert _check(rule, _gelu(), SINGLES, {"Wd", "Cb"}) == 13


def _split_concat():
    """split -> two arms of reshape, transpose, expand -> concat of a tuple."""
    graph = GraphBuilder()
    split = graph.add("Split", graph.input("x"), name="s")
    arms = []
    for arm in "12":
        value = graph.add("tuple_get_item", split, name=arm)
        for name in ("Reshape", "Transpose", "Unsqueeze"):
            value = graph.add(name, value, name=f"{name[0].lower()}{arm}")
        arms.append(value)
    graph.add("Concat", graph.add("tuple", *arms, name="t"), name="c")
    return graph.build()


SPLIT_SINGLES = [{"s"}, {"r1"}, {"t1"}, {"u1"}, {"r2"}, {"t2"}, {"u2"}, {"c"}]


def test_tuple_arguments():
    rule = Combine(OpCallByKind(), (TupleArg(),))
    assert _check(rule, _split_concat(), SPLIT_SINGLES, [{"u1", "u2", "t", "c"}]) == 9


def test_tuple_projections():
    rule = Combine(OpCallByKind(), (TupleProj(),))
    projected = [{"s", "1"}, {"s", "2"}, {"s", "1", "2"}]
    assert _check(rule, _split_concat(), SPLIT_SINGLES, projected) == 11


def test_host_table():
    """Projections, the tuple, and the views, which this IR leaves to the virtual machine too."""
    views = [{"r1"}, {"u1"}, {"r2"}, {"u2"}]
    assert _check(Host(), _split_concat(), [{"1"}, {"2"}, {"t"}], views) == 7


def _chain(*names):
    graph = GraphBuilder()
    value = graph.input("x")
    for name in names:
        value = graph.add(name.rstrip("12"), value, name=name)
    return graph.build()


STANDARD = ("Abs", "Relu1", "Relu2")
RELU = DFPattern("relu", op("Relu", wildcard()))
ABS = DFPattern("abs", op("Abs", wildcard()))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (RELU, [{"Relu1"}, {"Relu2"}]),
        (
            DFPattern("two", op("Relu", op("Relu", wildcard()) | op("Abs", wildcard()))),
            [{"Abs", "Relu1"}, {"Relu1", "Relu2"}],
        ),
        (Union((ABS, RELU)), [{"Abs"}, {"Relu1"}, {"Relu2"}]),
        (Composite("relu", RELU), [{"Relu1"}, {"Relu2"}]),
    ],
)
def test_base_rules(rule, expected):
    _check(rule, _chain(*STANDARD), expected)


@pytest.mark.parametrize(
    ("rule", "attrs"),
    [
        (Composite("relu", RELU), (("Composite", "relu"),)),
        (Primitive(RELU, codegen=False), (("Primitive", "1"),)),
        (Primitive(RELU), (("Codegen", "test"), ("Primitive", "1"))),
    ],
)
def test_wrappers_nest_with_attributes(rule, attrs):
    for candidate in rule.candidates(_chain(*STANDARD), SPEC):
        (nested,) = candidate.sub_graph.nested
        assert nested.attrs == attrs
        assert nested.sub_graph.inside == candidate.inside
        assert candidate.sub_graph.validity(SubGraphConfig(max_exits=1)) is None


def test_operator_kinds():
    """Opaque operators are no candidates."""
    assert _check(OpCallByKind(), _chain("Abs", "Add", "Shape"), [{"Abs"}, {"Add"}]) == 2

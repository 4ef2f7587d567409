"""Labels of composites: what a candidate's implementation is called, and who may be called so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.errors import OptionError
from collage.graph.builder import GraphBuilder
from collage.graph.index_set import index_set
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraph
from collage.rules import (
    ByAnchor,
    ByKind,
    Combine,
    Composite,
    DFPattern,
    OpCallByKind,
    PartitionSpec,
    Primitive,
    Union,
    find_candidates,
    op,
)
from collage.rules.backend_style import BackendStyle
from collage.rules.composites import LabelledNodes, read_region_label, region_label
from tests.support.fake_backend import FakeBackend, Graph
from tests.support.graphs import chain

SPEC = PartitionSpec("test")
ANY = ByKind(OpPatternKind.OUT_ELEMWISE_FUSABLE, OpPatternKind.OUT_ELEMWISE_FUSABLE)


def relu_labelled(name):
    return Composite(name, DFPattern(name, op("Relu")))


def test_one_composite_of_all_nodes_is_the_label():
    (candidate,) = relu_labelled("fast").candidates(chain("Relu"), SPEC)
    assert candidate.implementation == "fast"
    (candidate,) = Primitive(relu_labelled("fast")).candidates(chain("Relu"), SPEC)
    assert candidate.implementation == "fast"
    assert candidate.is_joinable


def test_the_outer_composite_chooses():
    rule = Composite("outer", relu_labelled("inner"))
    assert [c.implementation for c in rule.candidates(chain("Relu"), SPEC)] == ["outer"]


def test_labels_of_joined_composites_do_not_depend_on_the_place():
    table = Union((relu_labelled("relu"), Composite("sum", DFPattern("sum", op("Add")))))
    graph = chain("Tanh", "Relu", "Add", "Relu", "Add")
    candidates = Combine(table, (ANY,), max_nodes=2).candidates(graph, SPEC)
    labels = {candidate.inside: candidate.implementation for candidate in candidates}
    assert labels[0b00110] == labels[0b11000] == "0=relu 1=sum"
    assert labels[0b01100] == "0=sum 1=relu"
    assert read_region_label("0=relu 1=sum", 0b11000) == [
        LabelledNodes(0b01000, "relu"),
        LabelledNodes(0b10000, "sum"),
    ]


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=8), st.integers(0, 60))
def test_region_labels_are_read_back(owners, shift):
    """Nodes with one letter are one composite; "" is no composite's."""
    graph = chain(*["Relu"] * (len(owners) + shift))
    nodes = index_set(range(shift, shift + len(owners)))
    parts = {
        name: index_set(shift + place for place, owner in enumerate(owners) if owner == name)
        for name in sorted(set(owners) - {""})
    }
    nested = [
        SubGraph(graph, part).with_attrs(Composite=name).nested for name, part in parts.items()
    ]
    sub_graph = SubGraph(graph, nodes, tuple(entry for entries in nested for entry in entries))
    composites = read_region_label(region_label(sub_graph), nodes)
    assert {composite.label: composite.nodes for composite in composites} == parts


@pytest.mark.parametrize("label", ["0=", "=a", "a=b", "0,=a", "7=a", "0=a b", "0=a;1=b", "a b"])
def test_other_texts_are_no_labels(label):
    with pytest.raises(ValueError, match="is no label of a region"):
        read_region_label(label, 0b11)


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a,b", "ä"])
def test_names_that_a_region_label_could_not_hold_are_refused(name):
    with pytest.raises(OptionError, match="a label has letters, digits"):
        Composite(name, DFPattern("relu", op("Relu")))


def labelled_backend(rule, labels):
    backend = FakeBackend("mine", BackendStyle.LIBRARY, own_rule=rule)
    backend.labels = labels
    return backend


def test_several_labels_are_several_candidates():
    rule = Union((relu_labelled("fast"), relu_labelled("exact")))
    backend = labelled_backend(rule, ("exact", "fast"))
    candidates = find_candidates(Graph(chain("Relu", "Tanh")), [backend])
    assert [(c.inside, c.implementation) for c in candidates if not c.is_host] == [
        (1, "exact"), (1, "fast"), (2, ""),
    ]  # fmt: skip
    assert len({candidate.key for candidate in candidates}) == len(candidates)


def test_a_label_that_the_backend_lacks_is_an_error():
    for labels, own in (((), "it has none"), (("exact",), "it has exact")):
        backend = labelled_backend(relu_labelled("fast"), labels)
        with pytest.raises(
            OptionError, match=f"the implementation 'fast' with Composite, and {own}"
        ):
            find_candidates(Graph(chain("Relu")), [backend])


def test_siblings_of_one_anchor_are_joined_all_together():
    graph = GraphBuilder()
    x = graph.input("x")
    graph.returns(*(graph.add("MatMul", x, graph.weight()) for _ in range(12)))
    rule = Combine(OpCallByKind(), (ByAnchor(horizontal=True),), keeps_parts=False)
    assert [c.inside for c in rule.candidates(graph.build(), SPEC)] == [(1 << 12) - 1]

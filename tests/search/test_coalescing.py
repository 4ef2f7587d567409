"""Adjacent regions of one toolchain become a candidate after the search, and measurement decides."""

import pytest

from collage.cost import Cost
from collage.graph.builder import GraphBuilder
from collage.measure.measurement_request import MeasurementRequest
from collage.rules import HOST, Composite, PartitionSpec, Primitive, Singles, Union, find_candidates
from collage.rules.backend_style import BackendStyle
from collage.search.coalescing import join_adjacent_regions
from collage.search.enumeration import EnumeratedFunction
from collage.search.problem import Option, Problem
from collage.search.shortest_path import find_plan
from tests.support.fake_backend import FakeBackend, Graph
from tests.support.graphs import chain

CHAIN = chain("Relu", "Tanh", "Exp", "Sigmoid")


def enumerated(graph, *backends):
    candidates = find_candidates(Graph(graph), backends)
    options = [Option(c.inside, HOST if c.is_host else c.key, c.backend) for c in candidates]
    work = {
        c.key: MeasurementRequest("main", c.inside, c.backend, c.variant, c.implementation)
        for c in candidates
        if not c.is_host
    }
    return EnumeratedFunction(
        None, tuple(candidates), Problem(graph, options), work, key_of=lambda c: c.key
    )


def singles(name, wrap=Primitive, refused=frozenset(), nodes=0b1111):
    """A backend with single nodes only, of which `wrap` makes kernels."""
    return FakeBackend(name, BackendStyle.LIBRARY, refused, own_rule=wrap(Singles(nodes)))


def native(rule):
    return Primitive(rule, codegen=False)


class Measurer:
    """A kernel costs 1 s a node, and `per_call` more."""

    def __init__(self, per_call=0.5, refused=()):
        self.per_call, self.refused = per_call, refused
        self.requests = []

    def __call__(self, requests):
        self.requests += requests
        return [self.cost(request) for request in requests]

    def cost(self, request):
        if request.nodes in self.refused:
            return Cost.invalid("too long")
        return Cost(self.per_call + request.nodes.bit_count())


def joined(function, measurer, costs=()):
    known_costs = {key: Measurer().cost(work) for key, work in function.work.items()} | dict(costs)
    extended, all_costs = join_adjacent_regions(function, known_costs, measurer)
    plan = find_plan(extended.problem, all_costs)
    return extended, [option.nodes for option in plan.options]


def test_the_union_of_a_plans_regions_is_measured_and_wins():
    measurer = Measurer()
    extended, regions = joined(enumerated(CHAIN, singles("a")), measurer)
    assert measurer.requests == [MeasurementRequest("main", 0b1111, "a")]
    assert regions == [0b1111]
    assert len(extended.candidates) == len(extended.problem.options) == 5


def test_a_union_that_is_slower_or_refused_loses():
    for measurer in (Measurer(per_call=9.0), Measurer(refused={0b1111})):
        _, regions = joined(enumerated(CHAIN, singles("a")), measurer)
        assert regions == [1, 2, 4, 8]
        assert len(measurer.requests) == 1


def test_kernels_of_tvm_and_of_patterns_are_not_joined():
    for wrap in (native, lambda rule: rule):
        measurer = Measurer()
        _, regions = joined(enumerated(CHAIN, singles("a", wrap)), measurer)
        assert (measurer.requests, len(regions)) == ([], 4)


def test_regions_of_different_toolchains_are_not_joined():
    function = enumerated(
        CHAIN, singles("a", refused=frozenset({"Exp"})), singles("b", refused=frozenset({"Relu"}))
    )
    cheap = {key: Cost(0.1) for key, work in function.work.items() if work.backend == "b"}
    _, regions = joined(function, Measurer(), cheap)
    assert regions == [1, 2, 4, 8]


def test_after_a_union_the_new_plan_is_joined_again():
    """Joining {1, 2} makes `a` the cheapest there, next to its own first node."""
    function = enumerated(CHAIN, singles("a"), singles("b", native))
    (first_key,) = (key for key, w in function.work.items() if (w.backend, w.nodes) == ("a", 1))
    measurer = Measurer(per_call=0.1)
    _, regions = joined(function, measurer, {first_key: Cost(9.0)})
    assert [work.nodes for work in measurer.requests] == [0b1110]
    assert regions == [1, 0b1110]


def test_two_arms_of_three_are_joined():
    """No interval holds two arms without the third, which is another toolchain's."""
    graph = GraphBuilder()
    x = graph.add("Relu", graph.input("x"))
    arms = [graph.add(name, x) for name in ("Tanh", "Exp", "Sigmoid")]
    graph.add("Concat", *arms)
    function = enumerated(
        graph.build(),
        FakeBackend("a", BackendStyle.GRAPH, frozenset({"Exp"})),
        FakeBackend("b", BackendStyle.NATIVE, frozenset({"Relu", "Concat", "Tanh", "Sigmoid"})),
    )
    measurer = Measurer()
    _, regions = joined(function, measurer)
    assert all(not work.nodes & 0b100 for work in measurer.requests)
    assert 0b01011 in regions or 0b11010 in regions


def test_labels_of_parts_are_in_the_union():
    rule = Union((Composite("x", Singles(0b0011)), Composite("y", Singles(0b1100))))
    backend = FakeBackend("a", BackendStyle.LIBRARY, own_rule=Primitive(rule))
    backend.labels = ("x", "y")
    measurer = Measurer()
    joined(enumerated(CHAIN, backend), measurer)
    assert [work.label for work in measurer.requests] == ["0=x 1=x 2=y 3=y"]


@pytest.mark.parametrize("spec", [PartitionSpec("a"), PartitionSpec("a", "fast")])
def test_only_kernels_of_other_code_generators_are_joinable(spec):
    rules = [Primitive(Singles(1)), native(Singles(1)), Singles(1)]
    assert [rule.candidates(CHAIN, spec)[0].is_joinable for rule in rules] == [True, False, False]

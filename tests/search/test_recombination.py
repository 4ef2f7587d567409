"""Parts of measured plans make new plans, predicted by the parts as they were measured."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.cost import Cost
from collage.graph.index_set import indices
from collage.search.problem import Option, Plan, Problem
from collage.search.recombination import MeasuredPlan, parts_by_start, recombinations
from tests.support.search_oracle import chain, option

NODES = 6


def interval(backend, begin, end, **changes):
    return Option((1 << end) - (1 << begin), f"{backend}-{begin}-{end}", backend, **changes)


def plan(*options):
    return Plan(options, 1.0)


def measured(parent, *seconds):
    return MeasuredPlan(parent, dict(enumerate(seconds)))


A = plan(interval("a", 0, 2), interval("a", 2, 4), interval("a", 4, 6))
B = plan(interval("b", 0, 3), interval("b", 3, 4), interval("b", 4, 6))
OPTIONS = (*A.options, *B.options)
COSTS = {each.key: Cost(1.0) for each in OPTIONS}
PROBLEM = Problem(chain(NODES), OPTIONS)


def chosen(plans):
    return [[each.key for each in child.options] for child in plans]


def test_the_faster_parts_of_both_plans_make_the_child():
    """The plans share the cuts 4 and 6 alone: the first part of b, the last of a."""
    children = recombinations(
        PROBLEM, COSTS, [measured(A, 2.0, 2.0, 1.0), measured(B, 1.5, 1.5, 2.0)]
    )
    assert chosen(children)[0] == ["b-0-3", "b-3-4", "a-4-6"]
    assert children[0].predicted_s == pytest.approx(4.0)


def test_kernels_without_times_have_their_costs():
    children = recombinations(PROBLEM, COSTS, [measured(A, 2.0, 2.0, 1.0), MeasuredPlan(B, {})])
    assert chosen(children)[0] == ["b-0-3", "b-3-4", "a-4-6"]
    assert children[0].predicted_s == pytest.approx(3.0)


def test_three_plans_may_give_a_part_each():
    parents = [
        plan(*(interval(name, begin, begin + 2) for begin in (0, 2, 4))) for name in ("a", "b", "c")
    ]
    options = [each for parent in parents for each in parent.options]
    costs = {each.key: Cost(1.0) for each in options}
    times = ([1.0, 3.0, 3.0], [3.0, 1.0, 3.0], [3.0, 3.0, 1.0])
    children = recombinations(
        Problem(chain(NODES), options),
        costs,
        [measured(parent, *seconds) for parent, seconds in zip(parents, times, strict=True)],
    )
    assert chosen(children)[0] == ["a-0-2", "b-2-4", "c-4-6"]
    assert [child.predicted_s for child in children] == [3.0, 5.0]


def test_without_a_common_cut_there_is_no_child():
    whole = plan(interval("c", 0, NODES))
    problem = Problem(chain(NODES), [*OPTIONS, *whole.options])
    costs = {**COSTS, "c-0-6": Cost(1.0)}
    assert recombinations(problem, costs, [MeasuredPlan(A, {}), MeasuredPlan(whole, {})]) == []
    assert recombinations(problem, costs, [MeasuredPlan(A, {})]) == []


def test_backends_in_conflict_have_no_child():
    problem = Problem(chain(NODES), OPTIONS, conflicts={"a": {"b"}, "b": {"a"}})
    parents = [measured(A, 2.0, 2.0, 1.0), measured(B, 1.5, 1.5, 2.0)]
    assert recombinations(problem, COSTS, parents) == []


def test_captured_and_launched_plans_are_not_mixed():
    waiting = plan(
        *(interval("b", begin, begin + 2, graph_capturable=False) for begin in (0, 2, 4))
    )
    problem = Problem(chain(NODES), [*A.options, *waiting.options])
    costs = {each.key: Cost(1.0) for each in problem.options}
    parents = [measured(A, 2.0, 2.0, 1.0), measured(waiting, 1.0, 1.0, 2.0)]
    assert recombinations(problem, costs, parents) == []


def test_interleaved_regions_belong_to_one_part():
    """Regions {0, 2} and {1, 3} cross every cut up to 4."""
    woven = plan(option(0, 2), option(1, 3), option(4), option(5))
    problem = Problem(chain(NODES), woven.options)
    costs = {each.key: Cost(1.0) for each in woven.options}
    parts = parts_by_start(problem, costs, MeasuredPlan(woven, {}))
    assert {start: (part.end, part.seconds) for start, part in parts.items()} == {
        0: (4, 2.0), 4: (5, 1.0), 5: (6, 1.0),
    }  # fmt: skip


@st.composite
def intervals(draw, backend):
    """A plan of intervals with their times."""
    cuts = sorted({0, NODES, *draw(st.sets(st.integers(1, NODES - 1)))})
    options = [interval(backend, *pair) for pair in pairwise(cuts)]
    seconds = draw(st.lists(st.integers(1, 9), min_size=len(options), max_size=len(options)))
    return measured(plan(*options), *map(float, seconds))


@given(st.tuples(intervals("a"), intervals("b"), intervals("c")))
@settings(max_examples=100, deadline=None)
def test_children_are_covers_of_measured_parts(parents):
    times = {
        each.key: parent.kernels_s[position]
        for parent in parents
        for position, each in enumerate(parent.plan.options)
    }
    options = [each for parent in parents for each in parent.plan.options]
    problem = Problem(chain(NODES), options)
    costs = {each.key: Cost(99.0) for each in options}
    for child in recombinations(problem, costs, parents):
        covered = [node for each in child.options for node in indices(each.nodes)]
        assert covered == list(range(NODES))
        assert child.predicted_s == pytest.approx(sum(times[each.key] for each in child.options))
        backends = [each.backend for each in child.options]
        changes = sum(one != two for one, two in pairwise(backends))
        assert 1 <= changes <= 2

"""Neighbours of a plan: one window covered anew, the best first."""

import pytest

from collage.cost import Cost
from collage.search.neighbours import WINDOW, neighbours
from collage.search.problem import Option, Plan, Problem
from collage.search.shortest_path import find_plan
from tests.search.oracle import chain


def option(*nodes, backend):
    return Option(sum(1 << n for n in nodes), (backend, *nodes), backend)


@pytest.fixture
def problem():
    options = [
        option(*range(begin, end), backend=backend)
        for backend in ("ort", "tvm")
        for begin in range(5)
        for end in range(begin + 1, min(begin + 2, 5) + 1)
    ]
    return Problem(chain(5), options)


def costs_of(problem):
    return {o.key: Cost(1.0 + 0.7 * o.size + 0.1 * (o.backend == "tvm")) for o in problem.options}


def test_they_cover_everything_and_differ_in_one_window(problem):
    plan = find_plan(problem, costs_of(problem))
    found = neighbours(problem, costs_of(problem), plan)
    assert found
    assert len({other.options for other in found}) == len(found)
    for other in found:
        assert sum(o.nodes for o in other.options) == 0b11111
        gone = [o for o in plan.options if o not in other.options]
        assert 1 <= len(gone) <= WINDOW
    predicted = [other.predicted_s for other in found]
    assert predicted == sorted(predicted)
    assert predicted[0] >= plan.predicted_s


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ([("ort", 0, 1), ("ort", 2, 3), ("ort", 4)], {("tvm", 0, 1), ("ort", 2, 3), ("ort", 4)}),
        ([("ort", 0, 1), ("ort", 2, 3), ("ort", 4)], {("ort", 0), ("ort", 1), ("ort", 2, 3), ("ort", 4)}),
        ([("ort", 0, 1), ("ort", 2, 3), ("ort", 4)], {("ort", 0, 1), ("ort", 2), ("ort", 3, 4)}),
        ([("ort", 0), ("ort", 1), ("ort", 2, 3), ("ort", 4)], {("ort", 0, 1), ("ort", 2, 3), ("ort", 4)}),
    ],
    ids=["another backend", "split", "border", "merge"],
)  # fmt: skip
def test_every_kind_of_move_is_found(problem, start, wanted):
    by_key = {o.key: o for o in problem.options}
    plan = Plan(tuple(by_key[key] for key in start), 0.0)
    found = [
        {o.key for o in other.options} for other in neighbours(problem, costs_of(problem), plan)
    ]
    assert wanted in found


def test_what_is_not_measured_is_in_no_neighbour(problem):
    plan = find_plan(problem, costs_of(problem))
    own = {o.key for o in plan.options}
    few = {key: cost for key, cost in costs_of(problem).items() if key in own}
    assert neighbours(problem, few, plan) == []

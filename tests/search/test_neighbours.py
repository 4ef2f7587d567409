"""Neighbours of a plan: one window covered again, the best first."""

import pytest

from collage.cost import Cost
from collage.search.neighbours import NEIGHBOUR_WINDOW, neighbours
from collage.search.problem import Option, Plan, Problem
from collage.search.shortest_path import find_plan
from tests.support.search_oracle import chain


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


def test_neighbours_are_covers_with_one_changed_window(problem):
    plan = find_plan(problem, costs_of(problem))
    plans = neighbours(problem, costs_of(problem), plan)
    assert plans
    assert len({neighbour.options for neighbour in plans}) == len(plans)
    for neighbour in plans:
        assert sum(o.nodes for o in neighbour.options) == 0b11111
        replaced = [o for o in plan.options if o not in neighbour.options]
        assert 1 <= len(replaced) <= NEIGHBOUR_WINDOW
    predicted = [neighbour.predicted_s for neighbour in plans]
    assert predicted == sorted(predicted)
    assert predicted[0] >= plan.predicted_s


@pytest.mark.parametrize(
    ("start", "neighbour_keys"),
    [
        ([("ort", 0, 1), ("ort", 2, 3), ("ort", 4)], {("tvm", 0, 1), ("ort", 2, 3), ("ort", 4)}),
        ([("ort", 0, 1), ("ort", 2, 3), ("ort", 4)], {("ort", 0), ("ort", 1), ("ort", 2, 3), ("ort", 4)}),
        ([("ort", 0, 1), ("ort", 2, 3), ("ort", 4)], {("ort", 0, 1), ("ort", 2), ("ort", 3, 4)}),
        ([("ort", 0), ("ort", 1), ("ort", 2, 3), ("ort", 4)], {("ort", 0, 1), ("ort", 2, 3), ("ort", 4)}),
    ],
    ids=["another backend", "split", "border", "merge"],
)  # fmt: skip
def test_every_kind_of_move_is_found(problem, start, neighbour_keys):
    by_key = {o.key: o for o in problem.options}
    plan = Plan(tuple(by_key[key] for key in start), 0.0)
    key_sets = [
        {o.key for o in neighbour.options}
        for neighbour in neighbours(problem, costs_of(problem), plan)
    ]
    assert neighbour_keys in key_sets


def test_unmeasured_options_are_in_no_neighbour(problem):
    plan = find_plan(problem, costs_of(problem))
    own = {o.key for o in plan.options}
    plan_costs = {key: cost for key, cost in costs_of(problem).items() if key in own}
    assert neighbours(problem, plan_costs, plan) == []

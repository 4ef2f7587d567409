"""CUDA graphs in predictions: exact against all plans, and distinct names."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.cost import Cost
from collage.search.graph_launches import is_captured, predicted_s, without_graphs
from collage.search.neighbours import neighbours
from collage.search.plan_selection import select_plans
from collage.search.problem import Option, Plan, Problem
from tests.support.search_oracle import chain

LENGTH = 5
LAUNCH_S = 4e-6


def problem_and_costs(seconds) -> tuple[Problem, dict]:
    """A chain: "gpu" takes single nodes, "wait" pairs that may not be captured; costs in order."""
    options = [Option(1 << node, ("gpu", node), "gpu") for node in range(LENGTH)]
    options += [
        Option(1 << a | 1 << b, ("wait", a), "wait", graph_capturable=False)
        for a, b in pairwise(range(LENGTH))
    ]
    costs = {option.key: Cost(s) for option, s in zip(options, seconds, strict=True)}
    return Problem(chain(LENGTH), options, launch_s=LAUNCH_S), costs


def every_plan(problem, start=0, chosen=()):
    """All covers of the chain, one option after the other."""
    if start == LENGTH:
        yield Plan(chosen, math.nan)
    for option in problem.options:
        if option.nodes & -option.nodes == 1 << start:
            yield from every_plan(problem, start + option.size, (*chosen, option))


def least_s(problem, costs):
    """The least of all sums, each by the definition."""

    def total(plan):
        with_graphs = all(option.graph_capturable for option in plan.options)
        return sum(
            costs[option.key].seconds if with_graphs else max(costs[option.key].seconds, LAUNCH_S)
            for option in plan.options
        )

    return min(map(total, every_plan(problem)))


MICROSECONDS = st.integers(1, 12).map(lambda number: number * 1e-6)


@given(st.lists(MICROSECONDS, min_size=2 * LENGTH - 1, max_size=2 * LENGTH - 1))
def test_the_best_plan_is_the_optimum_with_launches(seconds):
    problem, costs = problem_and_costs(seconds)
    selected = select_plans(problem, costs, 3)
    assert min(named.plan.predicted_s for named in selected) == pytest.approx(
        least_s(problem, costs)
    )
    for named in selected:
        assert named.plan.predicted_s == pytest.approx(predicted_s(problem, costs, named.plan))
        assert named.name.startswith("launched-") != is_captured(named.plan)


def test_short_kernels_keep_graphs_and_long_ones_do_without():
    """1 us each against a pair in 0.5 us: with launches the pair's plan is 4 us a call."""
    short, costs = problem_and_costs([1e-6] * LENGTH + [0.5e-6] * (LENGTH - 1))
    best = min(select_plans(short, costs, 1), key=lambda named: named.plan.predicted_s)
    assert (best.name, best.plan.predicted_s) == ("best-1", pytest.approx(5e-6))
    long, costs = problem_and_costs([100e-6] * LENGTH + [50e-6] * (LENGTH - 1))
    best = min(select_plans(long, costs, 1), key=lambda named: named.plan.predicted_s)
    assert best.name == "launched-best-1"
    assert best.plan.predicted_s == pytest.approx(200e-6)


def test_neighbours_are_predicted_with_their_launches():
    problem, costs = problem_and_costs([1e-6] * LENGTH + [0.5e-6] * (LENGTH - 1))
    captured = next(plan for plan in every_plan(problem) if is_captured(plan))
    plans = neighbours(problem, costs, captured)
    assert plans
    assert all(plan.predicted_s == predicted_s(problem, costs, plan) for plan in plans)
    assert min(plan.predicted_s for plan in plans) >= 3 * LAUNCH_S


def test_without_graph_capture_plans_keep_their_names():
    problem, costs = problem_and_costs([1e-6] * LENGTH + [0.5e-6] * (LENGTH - 1))
    selected = select_plans(without_graphs(problem), costs, 1)
    best = next(named for named in selected if named.name == "best-1")
    assert best.plan.predicted_s == pytest.approx(3 * LAUNCH_S)

"""The search agrees with brute force on random graphs and options with several exits."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage.errors import SearchError
from collage.search import explain, find_plan, find_plans, search_lazily
from tests.support.search_oracle import Bounds, all_plans, check_order, problems

thorough = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@given(problems())
@thorough
def test_plan_is_optimal_and_executable(drawn):
    problem, costs = drawn
    plan = find_plan(problem, costs)
    check_order(problem.graph, plan)
    assert plan.predicted_s == all_plans(problem, costs)[0][0]


@given(problems(singles=False))
@thorough
def test_invalid_and_unknown_options_are_never_chosen(drawn):
    problem, costs = drawn
    plans = all_plans(problem, costs)
    if not plans:
        with pytest.raises(SearchError, match="no plan covers node"):
            find_plan(problem, costs)
        return
    plan = find_plan(problem, costs)
    check_order(problem.graph, plan)
    assert all(costs[o.key].is_valid for o in plan.options)
    assert plan.predicted_s == plans[0][0]


@given(problems(max_nodes=7))
@thorough
def test_k_best_plans_are_distinct_and_the_best(drawn):
    problem, costs = drawn
    all_covers = all_plans(problem, costs)
    plans = find_plans(problem, costs, 12)
    assert [plan.predicted_s for plan in plans] == [seconds for seconds, _ in all_covers[:12]]
    assert len({frozenset(plan.options) for plan in plans}) == len(plans)
    assert {frozenset(plan.options) for plan in plans} <= {chosen for _, chosen in all_covers}
    assert plans[0] == find_plan(problem, costs)
    for plan in plans:
        check_order(problem.graph, plan)


@given(problems(max_nodes=7))
@thorough
def test_regret_is_the_price_of_the_best_plan_with_an_option(drawn):
    problem, costs = drawn
    all_covers = all_plans(problem, costs)
    explanation = explain(problem, costs)
    assert explanation.plan == find_plan(problem, costs)
    for regret in explanation.regrets:
        using = [seconds for seconds, chosen in all_covers if regret.option in chosen]
        expected = using[0] - all_covers[0][0] if using else math.inf
        assert regret.regret_s == expected
        assert bool(regret.reason) == (not using)


@given(problems(singles=False))
@thorough
def test_lazy_search_finds_the_optimum_under_true_bounds(drawn):
    problem, costs = drawn
    bounds = Bounds.of(costs, 0.5, otherwise=0.5)
    plans = all_plans(problem, costs)
    measured = []

    def measure(keys):
        assert not set(keys) & set(measured)
        measured.extend(keys)
        return {key: costs[key] for key in keys}

    if not plans:
        with pytest.raises(SearchError):
            search_lazily(problem, measure, estimator=bounds, batch_size=2)
        return
    result = search_lazily(problem, measure, estimator=bounds, batch_size=2)
    check_order(problem.graph, result.plan)
    assert result.plan.predicted_s == plans[0][0]
    assert result.measured == len(measured)
    assert result.gap_s == 0


@given(problems(max_nodes=7), st.sampled_from([{}, {"tvm": {"onednn"}, "onednn": {"tvm"}}]))
@thorough
def test_no_plan_mixes_backends_that_are_in_conflict(drawn, conflicts):
    """All searches find the best of what brute force leaves."""
    problem, costs = drawn
    problem = replace(problem, conflicts=conflicts)
    allowed = [
        plan for plan in all_plans(problem, costs)
        if not conflicts or len({option.backend for option in plan[1]}) == 1
    ]  # fmt: skip
    if not allowed:
        with pytest.raises(SearchError, match="no plan covers node"):
            find_plan(problem, costs)
        return
    plan = find_plan(problem, costs)
    check_order(problem.graph, plan)
    assert plan.predicted_s == allowed[0][0]
    best_plans = find_plans(problem, costs, 5)
    assert [plan.predicted_s for plan in best_plans] == [seconds for seconds, _ in allowed[:5]]
    lazy = search_lazily(problem, lambda keys: {k: costs[k] for k in keys}, estimator=Bounds())
    assert lazy.plan.predicted_s == allowed[0][0]
    assert not conflicts or len(lazy.plan.backends) == 1

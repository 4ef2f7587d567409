"""The lazy search: its measurements, its end, its result, and its estimator."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.cost.cost import Cost
from collage.errors import SearchError
from collage.search import AdditiveEstimator, Problem, SearchBudget, find_plan, search_lazily
from collage.search.lazy import LEAST_IMPROVEMENT
from tests.support.search_oracle import Bounds, all_plans, chain, check_order, option, problems

LENGTH = 24


def repeated_chain(seed=0, noise=0.03):
    """A chain of 24 nodes, equal every four, with all intervals on two backends."""
    rng = random.Random(seed)
    unit = {(b, i): rng.uniform(1, 3) for b in ("tvm", "ort") for i in range(4)}
    options, costs = [], {}
    for backend in ("tvm", "ort"):
        for start in range(LENGTH):
            for end in range(start + 1, LENGTH + 1):
                if backend == "tvm" and end - start > 2:
                    continue
                key = (backend, start % 4, end - start)
                options.append(option(*range(start, end), backend=backend, key=key))
                total = 0.2 + sum(unit[backend, i % 4] for i in range(start, end))
                costs.setdefault(key, Cost(total * rng.uniform(1 - noise, 1)))
    return Problem(chain(LENGTH), options), costs


class Meter:
    """Measures from a table and keeps every batch."""

    def __init__(self, costs):
        self.costs = costs
        self.batches = []
        self.now = 0.0

    def __call__(self, keys):
        self.batches.append(list(keys))
        self.now += len(keys)
        return {key: self.costs[key] for key in keys if key in self.costs}


@pytest.mark.parametrize("batch_size", [1, 8])
def test_true_bounds_give_the_optimum_with_fewer_measurements(batch_size):
    problem, costs = repeated_chain()
    meter = Meter(costs)
    result = search_lazily(problem, meter, estimator=Bounds.of(costs, 0.95), batch_size=batch_size)
    assert result.plan.predicted_s == find_plan(problem, costs).predicted_s
    assert result.gap_s == 0
    assert result.measured == sum(map(len, meter.batches)) < 0.5 * len(costs)
    assert result.measured + result.unmeasured == len(costs)
    assert all(len(batch) >= batch_size for batch in meter.batches[:-1])


@settings(max_examples=150, deadline=None)
@given(problems(singles=False), st.floats(0.0, 1.0), st.integers(1, 5))
def test_true_bounds_give_the_optimum_of_brute_force(drawn, share, batch_size):
    problem, costs = drawn
    plans = all_plans(problem, costs)
    meter = Meter(costs)
    bounds = Bounds.of(costs, share)
    if not plans:
        with pytest.raises(SearchError):
            search_lazily(problem, meter, estimator=bounds, batch_size=batch_size)
        return
    result = search_lazily(problem, meter, estimator=bounds, batch_size=batch_size)
    check_order(problem.graph, result.plan)
    assert result.plan.predicted_s == plans[0][0]
    assert result.gap_s == 0
    measured = [key for batch in meter.batches for key in batch]
    assert len(measured) == len(set(measured)) == result.measured


@settings(max_examples=50, deadline=None)
@given(problems(), st.integers(0, 6), st.integers(1, 3))
def test_a_budget_leaves_a_plan_and_a_bound_of_its_gap(drawn, measurements, batch_size):
    problem, costs = drawn
    result = search_lazily(
        problem,
        Meter(costs),
        estimator=Bounds.of(costs, 0.5),
        batch_size=batch_size,
        budget=SearchBudget(measurements=measurements),
    )
    best_s = all_plans(problem, costs)[0][0]
    assert result.plan.predicted_s - result.gap_s <= best_s <= result.plan.predicted_s


@pytest.mark.parametrize("seed", range(5))
def test_additive_estimates_find_a_plan_close_to_the_best(seed):
    problem, costs = repeated_chain(seed)
    seeds = [o.key for o in problem.ordered if o.size in (1, LENGTH)]
    result = search_lazily(
        problem, Meter(costs), seeds=seeds, estimator=AdditiveEstimator(problem), batch_size=4
    )
    assert result.plan.predicted_s <= 1.02 * find_plan(problem, costs).predicted_s
    assert result.measured < len(costs)


def test_a_margin_keeps_plans_hidden_by_noise():
    def searched(seed, margin):
        problem, costs = repeated_chain(seed, noise=0.1)
        seeds = [o.key for o in problem.ordered if o.size in (1, 2, LENGTH)]
        estimator = AdditiveEstimator(problem, margin=margin)
        result = search_lazily(
            problem, Meter(costs), seeds=seeds, estimator=estimator, batch_size=4
        )
        return result.plan.predicted_s / find_plan(problem, costs).predicted_s, result.measured

    without_margin, with_margin = (
        [searched(seed, margin) for seed in range(30)] for margin in (0.0, 0.08)
    )
    assert max(without_margin)[0] > 1.005
    assert max(with_margin)[0] == 1.0
    assert sum(n for _, n in without_margin) < sum(n for _, n in with_margin)


def test_a_search_ends_after_keys_without_improvement():
    problem, costs = repeated_chain(noise=0.1)
    batch = 4

    def searched(without_improvement):
        meter, budget = Meter(costs), SearchBudget(without_improvement=without_improvement)
        estimator = AdditiveEstimator(problem)
        result = search_lazily(problem, meter, estimator=estimator, batch_size=batch, budget=budget)
        assert result.measured == sum(map(len, meter.batches))
        return result

    unlimited, limited = searched(None), searched(batch)
    assert limited.measured < unlimited.measured
    assert limited.gap_s > 0
    plans = [batch.plan_s for batch in limited.rounds]
    assert plans[-2] != math.inf
    assert plans[-1] >= (1 - LEAST_IMPROVEMENT) * plans[-2]
    improves = [after < (1 - LEAST_IMPROVEMENT) * before for before, after in pairwise(plans[:-1])]
    assert all(improves)  # the search continues as long as every batch improves the plan


def test_the_first_batch_holds_the_unknown_seeds():
    problem, costs = repeated_chain()
    seeds = [("tvm", i, 1) for i in range(4)]
    meter = Meter(costs)
    search_lazily(
        problem, meter, estimator=Bounds(), costs={seeds[0]: costs[seeds[0]]},
        seeds=[*seeds, seeds[1]],
    )  # fmt: skip
    assert meter.batches[0] == seeds[1:]


def test_a_warm_search_measures_nothing():
    problem, costs = repeated_chain()
    meter = Meter({})
    result = search_lazily(problem, meter, estimator=Bounds(), costs=costs, seeds=list(costs))
    assert not meter.batches
    assert result.gap_s == 0
    assert result.plan == find_plan(problem, costs)


def test_a_budget_of_measurements_ends_with_a_measured_plan():
    problem, costs = repeated_chain()
    seeds = [("tvm", i, 1) for i in range(4)]
    meter = Meter(costs)
    budget = SearchBudget(measurements=10)
    result = search_lazily(
        problem, meter, estimator=Bounds(), seeds=seeds, batch_size=4, budget=budget
    )
    assert result.measured == 10
    assert result.gap_s > 0
    assert all(result.costs[o.key].is_valid for o in result.plan.options)


def test_a_budget_of_seconds_is_kept_by_the_given_clock():
    problem, costs = repeated_chain()
    meter = Meter(costs)
    budget = SearchBudget(seconds=6, clock=lambda: meter.now)
    seeds = [("tvm", i, 1) for i in range(4)]
    result = search_lazily(
        problem, meter, estimator=Bounds(), seeds=seeds, batch_size=2, budget=budget
    )
    assert result.measured == 6


def test_a_search_exceeds_its_budget_until_one_plan_is_measured():
    options = [option(0, key="a"), option(1, key="b")]
    costs = {"a": Cost(1.0), "b": Cost(1.0)}
    budget = SearchBudget(measurements=0)
    result = search_lazily(
        Problem(chain(2), options), Meter(costs), estimator=Bounds(), budget=budget
    )
    assert result.measured == 2


def test_invalid_results_are_planned_around():
    options = [option(0, 1, key="ab"), option(0, key="a"), option(1, key="b")]
    costs = {"a": Cost(1.0), "b": Cost(1.0), "ab": Cost.invalid("crashed")}
    result = search_lazily(
        Problem(chain(2), options), Meter(costs), estimator=Bounds(), seeds=["ab"]
    )
    assert [o.key for o in result.plan.options] == ["a", "b"]


def test_a_declined_key_is_requested_once():
    options = [option(0, key="a"), option(0, key="b")]
    meter = Meter({"a": Cost(1.0)})
    search_lazily(Problem(chain(1), options), meter, estimator=Bounds({"a": 0.5}))
    assert meter.batches == [["b"], ["a"]]


def test_no_valid_plan_is_an_error_with_the_reasons():
    meter = Meter({"a": Cost.invalid("needs AVX-512")})
    with pytest.raises(SearchError, match="needs AVX-512"):
        search_lazily(Problem(chain(1), [option(0, key="a")]), meter, estimator=Bounds())


def test_the_estimator_learns_repeated_units():
    problem, costs = repeated_chain(noise=0.0)
    estimator = AdditiveEstimator(problem, initial_optimism=1.0, margin=0.0)
    for length in (1, 2, 3):
        for place in range(4):
            for backend in ("tvm", "ort"):
                key = (backend, place, length)
                if key in costs:
                    estimator.observe(problem.options_of(key)[0], costs[key])
    longest = problem.options_of(("ort", 0, LENGTH))[0]
    assert estimator.estimate(longest) == pytest.approx(costs[longest.key].seconds, rel=0.1)


def test_optimism_follows_the_speedup_of_long_regions():
    problem, costs = repeated_chain(noise=0.0)
    estimator = AdditiveEstimator(problem, margin=0.0)
    # Without a fit before the long regions there is nothing to learn from them.
    unlearned = AdditiveEstimator(problem, initial_optimism=1.0, margin=0.0)
    for length in (1, 2, 3):  # one length alone cannot tell a call from its nodes
        for place in range(4):
            key = ("ort", place, length)
            estimator.observe(problem.options_of(key)[0], costs[key])
            unlearned.observe(problem.options_of(key)[0], costs[key])
    estimator.estimate(problem.options_of(("ort", 0, 2))[0])
    for length in range(4, 12):
        key = ("ort", 0, length)
        fused = Cost(0.5 * costs[key].seconds)
        estimator.observe(problem.options_of(key)[0], fused)
        unlearned.observe(problem.options_of(key)[0], fused)
    longest, other = (problem.options_of(key)[0] for key in (("ort", 0, LENGTH), ("tvm", 0, 1)))
    ratio = estimator.estimate(longest) / unlearned.estimate(longest)
    assert ratio == pytest.approx(0.5, abs=0.1)
    fresh = AdditiveEstimator(problem, margin=0.0)
    assert estimator.estimate(other) == fresh.estimate(other)

"""Plans under an error budget: what is refused at once, and plans with ever less error."""

import itertools
import math
from itertools import pairwise

import pytest
from onnx import helper

from collage.backends.cpu.openvino import OpenVinoBackend
from collage.cost.cost import Cost
from collage.rules.rule import HOST
from collage.runtime.cpu import bf16_reason
from collage.search import Budget, Problem, search_lazily
from collage.search.estimate import AdditiveEstimator
from collage.search.function_search import enumerate_function
from collage.search.plan_selection import worth_assembling
from collage.search.problem import Option
from collage.search.reduced_precision import (
    SLACK,
    Calibration,
    ErrorBudget,
    PricedPlans,
    expected_error,
    gentler_plans,
    search_gentler,
    weighed,
    within_budget,
)
from collage.search.shortest_path import valid_space
from tests.frontend.build import imported, model
from tests.search.oracle import chain

LENGTH = 6
ERRORS = (0.001, 0.02, 0.003, 0.004, 0.03, 0.002)
"""Of each node in bf16; every node saves the same time."""


def problem_and_costs():
    options, costs = [], {}
    for node, error in enumerate(ERRORS):
        options.append(Option(1 << node, ("f32", node), "ov"))
        options.append(Option(1 << node, ("bf16", node), "ov", variant="bf16", precision="bf16"))
        costs["f32", node] = Cost(2e-3)
        costs["bf16", node] = Cost(1e-3, error=error)
    return Problem(chain(LENGTH), options), costs


def squared(plan, costs):
    return sum(costs[option.key].error ** 2 for option in plan.options)


def test_gentler_plans_give_up_the_worst_regions_first():
    problem, costs = problem_and_costs()
    found = list(gentler_plans(PricedPlans.of(valid_space(problem, costs), costs), 0.01))
    errors = [squared(plan, costs) for plan in found]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1]
    kept = [{o.nodes.bit_length() - 1 for o in plan.options if o.reduced} for plan in found]
    assert all(after <= before for before, after in pairwise(kept))
    assert 4 not in kept[-1]  # the worst one
    assert 0 in kept[-1]  # the best one
    for plan in found:
        real_s = sum(costs[option.key].seconds for option in plan.options)
        assert plan.predicted_s == pytest.approx(real_s, abs=1e-12)


def test_unreduced_plans_are_always_worth_assembling():
    problem, costs = problem_and_costs()
    found = worth_assembling(problem, costs, 2, ErrorBudget(0.01))
    assert any(plan.plan.reduced for plan in found)
    assert any(not plan.plan.reduced and plan.single for plan in found)
    assert len({plan.name for plan in found}) == len(found)
    assert len({plan.plan.options for plan in found}) == len(found)


def test_without_reduced_options_nothing_is_added():
    problem, costs = problem_and_costs()
    exact = Problem(problem.graph, [one for one in problem.options if not one.reduced])
    assert not any("fp32" in plan.name or "gentler" in plan.name
                   for plan in worth_assembling(exact, costs, 2, ErrorBudget(0.01)))  # fmt: skip


@pytest.mark.parametrize(("error", "valid"), [(0.0, True), (SLACK * 0.01, True), (0.05, False)])
def test_a_candidate_beyond_all_hope_is_refused_with_its_error(error, valid):
    cost = Cost(1e-3, error=error)
    judged = within_budget(cost, 0.01)
    assert judged.is_valid is valid
    assert judged == cost if valid else "0.05 of the output's scale, above 0.04" in judged.reason


def test_what_makes_the_outputs_has_no_slack():
    cost = Cost(1e-3, error=0.02)
    assert within_budget(cost, 0.01).is_valid
    judged = within_budget(cost, 0.01, is_last=True)
    assert "0.02 of the output's scale, above 0.01" in judged.reason
    assert within_budget(cost, 0.02, is_last=True) == cost


@pytest.mark.skipif(bool(bf16_reason()), reason=bf16_reason() or "-")
def test_options_that_make_nothing_but_outputs_are_last(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"]),
        helper.make_node("MatMul", ["a", "a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    function = imported(model(nodes, {"x": ("float32", (4, 4))}, ["y"]), tmp_path)
    found = enumerate_function(function, [OpenVinoBackend()], may_reduce=True)
    last = {option.nodes for option in found.problem.options if option.key in found.last}
    assert last == {0b110, 0b111}  # the first product's error may still shrink
    assert all(o.reduced for o in found.problem.options if o.key in found.last)


def test_the_fastest_plan_within_an_error_is_found():
    problem, costs = problem_and_costs()
    priced = PricedPlans.of(valid_space(problem, costs), costs)
    for limit in (0.1, 0.025, 0.0062, 0.004, 0.0012):
        _, plan = priced.within(limit)
        assert expected_error(plan, costs) <= limit
        best = min(  # every node saves as much, so the best set is the largest one that fits
            LENGTH - size
            for size in range(LENGTH + 1)
            for kept in itertools.combinations(ERRORS, size)
            if math.sqrt(sum(error**2 for error in kept)) <= limit
        )
        assert sum(not option.reduced for option in plan.options) == best


def unlucky():
    """The fastest kernel takes everything and is beyond the tolerance; its parts are unknown."""
    whole = Option((1 << LENGTH) - 1, "whole", "ov", variant="bf16", precision="bf16")
    options, costs, hidden = [whole], {"whole": Cost(3e-3, error=0.03)}, {}
    for node in range(LENGTH):
        options.append(Option(1 << node, ("f32", node), "ov"))
        options.append(Option(1 << node, ("bf16", node), "ov", variant="bf16", precision="bf16"))
        costs["f32", node] = Cost(2e-3)
        hidden["bf16", node] = Cost(1e-3, error=0.003)
    return Problem(chain(LENGTH), options), costs, hidden


def test_parts_are_measured_where_the_fastest_plan_is_beyond_the_tolerance():
    problem, costs, hidden = unlucky()
    asked = []

    def measure(keys):
        asked.extend(keys)
        return {key: hidden[key] for key in keys}

    plain = search_lazily(
        problem,
        measure,
        costs=costs | {("bf16", 0): hidden["bf16", 0]},
        estimator=AdditiveEstimator(problem, initial_optimism=1.0),
    )
    assert asked == []  # the whole is faster than any sum of parts
    found = search_gentler(problem, measure, plain.costs, ErrorBudget(0.01), 2, Budget())
    assert len(set(asked)) >= LENGTH - 2
    assert all(found[key] == hidden[key] for key in asked)  # without the price
    errors = [
        expected_error(p.plan, found)
        for p in worth_assembling(problem, found, 1, ErrorBudget(0.01))
    ]
    assert any(0 < error <= 0.01 for error in errors)


def test_nothing_more_is_measured_where_the_fastest_plan_is_within_the_tolerance():
    problem, costs, _ = unlucky()

    def measure(keys):
        raise AssertionError(keys)

    assert search_gentler(problem, measure, costs, ErrorBudget(0.03), 2, Budget()) == costs


def test_each_toolchain_in_less_precision_has_its_plan_whatever_its_cost():
    # The long region was measured on a busy machine; node 0 is nothing for the toolchain.
    rest = (1 << LENGTH) - 2
    options = [Option(1 << node, ("f32", node), "ov") for node in range(LENGTH)]
    options += [Option(rest, "long", "dnn"), Option(6, "short", "dnn", precision="bf16")]
    options.append(Option(rest, "reduced", "dnn", variant="bf16", precision="bf16"))
    costs = {("f32", node): Cost(2e-3) for node in range(LENGTH)}
    costs |= {"long": Cost(9e-3), "short": Cost(1e-3, error=1e-3)}
    costs["reduced"] = Cost(60e-3, error=2e-3)
    found = {p.name: p.plan for p in worth_assembling(Problem(chain(LENGTH), options), costs, 1)}
    plan = found["mostly-dnn-bf16"]
    assert [option.key for option in plan.options] == [("f32", 0), "reduced"]
    assert plan.predicted_s == pytest.approx(62e-3)


@pytest.mark.parametrize(("long_s", "tried"), [(10e-3, True), (13e-3, False)])
def test_a_toolchain_alone_is_tried_in_few_regions_though_these_look_slower(long_s, tried):
    # Node 0 is a view, so that no region is the whole function.
    rest = (1 << LENGTH) - 2
    options = [Option(1, HOST, HOST), Option(rest, "long", "dnn")]
    options += [Option(1 << node, ("dnn", node), "dnn") for node in range(1, LENGTH)]
    costs = {("dnn", node): Cost(9e-3 / (LENGTH - 1)) for node in range(1, LENGTH)}
    costs |= {HOST: Cost(0.0), "long": Cost(long_s)}
    found = {p.name: p for p in worth_assembling(Problem(chain(LENGTH), options), costs, 1)}
    assert ("mostly-dnn" in found) == tried
    if tried:
        assert [option.key for option in found["mostly-dnn"].plan.options] == [HOST, "long"]
        assert found["mostly-dnn"].single == "dnn"


@pytest.mark.parametrize(
    ("tried", "limit"),
    [
        ([], None),
        ([(0.02, 0.009), (0.01, 0.003)], None),  # nothing was beyond
        ([(0.02, 0.04)], 0.9 * 0.02 / 4),  # in proportion, a little below
        ([(0.02, 0.04), (0.03, 0.02)], 0.9 * 0.03 / 2),  # the one that was closest
        ([(0.02, math.inf)], 0.01),  # integers differ: nothing says by how much
        ([(0.018, 0.02), (0.008, 0.004)], 0.012),  # between the two
    ],
)
def test_plans_that_were_tried_say_what_may_be_within_the_tolerance(tried, limit):
    calibration = Calibration(0.01)
    for expected, error in tried:
        calibration.add(expected, error)
    assert calibration.limit() == (None if limit is None else pytest.approx(limit))
    beyond = [expected for expected, error in tried if error > 0.01]
    assert calibration.next_below() == pytest.approx(min(beyond, default=0.0), rel=1e-5)
    assert all(calibration.next_below() < expected for expected in beyond)


def test_errors_count_as_what_they_are_at_the_outputs():
    problem, costs = problem_and_costs()
    # Node 4, the worst by itself, hardly matters; node 0, the best by itself, matters most.
    gains = {1 << 0: 50.0, 1 << 4: 0.01}

    def gain(nodes):
        return gains.get(nodes, 1.0)

    found = weighed(problem, costs, gain)
    assert found["bf16", 0].error == pytest.approx(0.05)
    assert found["bf16", 4].error == pytest.approx(0.0003)
    assert found["f32", 0] == costs["f32", 0]
    *_, last = gentler_plans(PricedPlans.of(valid_space(problem, found), found), 0.01)
    kept = {option.nodes.bit_length() - 1 for option in last.options if option.reduced}
    assert 4 in kept
    assert 0 not in kept


def test_options_of_one_key_count_as_the_worst_place():
    options = [Option(1, "k", "ov", precision="bf16"), Option(2, "k", "ov", precision="bf16")]
    found = weighed(Problem(chain(2), options), {"k": Cost(1.0, error=0.1)}, float)
    assert found["k"].error == pytest.approx(0.2)


def test_plans_that_are_beyond_all_hope_give_way_to_the_same_ones_within_the_budget():
    problem, costs = problem_and_costs()
    free = worth_assembling(problem, costs, 2)
    assert any(one.name == "best-1" and one.plan.reduced for one in free)
    budget = ErrorBudget(0.01, lambda nodes: 5.0)  # what is 0.036 in the regions is 0.18 at the end
    found = worth_assembling(problem, costs, 2, budget)
    effects = weighed(problem, costs, budget.gain)
    reduced = [one for one in found if one.plan.reduced]
    assert reduced
    assert all(expected_error(one.plan, effects) <= SLACK * 0.01 for one in reduced)
    best = next(one.plan for one in found if one.name == "budget-best-1")
    assert 0 < expected_error(best, effects) <= 0.01
    real_s = sum(costs[option.key].seconds for option in best.options)
    assert best.predicted_s == pytest.approx(real_s)  # nothing of the price is left in it
    assert any(not one.plan.reduced for one in found)

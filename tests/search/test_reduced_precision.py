"""Plans under an error budget: rejected candidates, and plans with lower and lower error."""

import itertools
import math
from itertools import pairwise

import pytest
from onnx import helper

from collage.backends.cpu.openvino import OpenVinoBackend
from collage.cost.cost import Cost
from collage.rules.rule import HOST
from collage.runtime.cpu import bf16_reason
from collage.search import Problem, SearchBudget, search_lazily
from collage.search.enumeration import enumerate_function
from collage.search.error_calibration import ErrorCalibration
from collage.search.estimate import AdditiveEstimator
from collage.search.plan_selection import select_plans
from collage.search.problem import Option
from collage.search.reduced_precision import (
    SLACK,
    ErrorBudget,
    PenalisedPlans,
    expected_error,
    lower_error_plans,
    search_lower_error,
    with_output_errors,
    within_budget,
)
from collage.search.shortest_path import valid_space
from tests.frontend.build import imported, model
from tests.support.reduced_plans import ERRORS, LENGTH, problem_and_costs
from tests.support.search_oracle import chain


def squared(plan, costs):
    return sum(costs[option.key].error ** 2 for option in plan.options)


def test_lower_error_plans_drop_the_worst_regions_first():
    problem, costs = problem_and_costs()
    plans = list(lower_error_plans(PenalisedPlans.of(valid_space(problem, costs), costs), 0.01))
    errors = [squared(plan, costs) for plan in plans]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1]
    reduced_nodes = [
        {o.nodes.bit_length() - 1 for o in plan.options if o.reduced} for plan in plans
    ]
    assert all(after <= before for before, after in pairwise(reduced_nodes))
    assert 4 not in reduced_nodes[-1]  # the worst one
    assert 0 in reduced_nodes[-1]  # the best one
    for plan in plans:
        real_s = sum(costs[option.key].seconds for option in plan.options)
        assert plan.predicted_s == pytest.approx(real_s, abs=1e-12)


def test_unreduced_plans_are_always_selected():
    problem, costs = problem_and_costs()
    selected = select_plans(problem, costs, 2, ErrorBudget(0.01))
    assert any(plan.plan.reduced for plan in selected)
    assert any(not plan.plan.reduced and plan.single for plan in selected)
    assert len({plan.name for plan in selected}) == len(selected)
    assert len({plan.plan.options for plan in selected}) == len(selected)


def test_without_reduced_options_nothing_is_added():
    problem, costs = problem_and_costs()
    exact = Problem(problem.graph, [option for option in problem.options if not option.reduced])
    assert not any("fp32" in plan.name or "gentler" in plan.name
                   for plan in select_plans(exact, costs, 2, ErrorBudget(0.01)))  # fmt: skip


@pytest.mark.parametrize(("error", "valid"), [(0.0, True), (SLACK * 0.01, True), (0.05, False)])
def test_a_candidate_with_too_high_an_error_is_invalid(error, valid):
    cost = Cost(1e-3, error=error)
    judged = within_budget(cost, 0.01)
    assert judged.is_valid is valid
    assert judged == cost if valid else "0.05 of the output's scale, above 0.04" in judged.reason


def test_candidates_of_outputs_only_have_no_slack():
    cost = Cost(1e-3, error=0.02)
    assert within_budget(cost, 0.01).is_valid
    judged = within_budget(cost, 0.01, is_last=True)
    assert "0.02 of the output's scale, above 0.01" in judged.reason
    assert within_budget(cost, 0.02, is_last=True) == cost


@pytest.mark.skipif(bool(bf16_reason()), reason=bf16_reason() or "-")
def test_options_of_outputs_only_are_found(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"]),
        helper.make_node("MatMul", ["a", "a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    function = imported(model(nodes, {"x": ("float32", (4, 4))}, ["y"]), tmp_path)
    enumerated = enumerate_function(function, [OpenVinoBackend()], may_reduce=True)
    last = {option.nodes for option in enumerated.problem.options if option.key in enumerated.last}
    assert last == {0b110, 0b111}  # the first product's error may still shrink
    assert all(o.reduced for o in enumerated.problem.options if o.key in enumerated.last)


def test_the_fastest_plan_within_an_error_is_found():
    problem, costs = problem_and_costs()
    penalised = PenalisedPlans.of(valid_space(problem, costs), costs)
    for limit in (0.1, 0.025, 0.0062, 0.004, 0.0012):
        _, plan = penalised.within(limit)
        assert expected_error(plan, costs) <= limit
        best = min(  # every node saves as much, so the best set is the largest one that fits
            LENGTH - size
            for size in range(LENGTH + 1)
            for subset in itertools.combinations(ERRORS, size)
            if math.sqrt(sum(error**2 for error in subset)) <= limit
        )
        assert sum(not option.reduced for option in plan.options) == best


def unlucky():
    """The fastest kernel takes everything and is beyond the tolerance; its parts are unknown."""
    whole_option = Option((1 << LENGTH) - 1, "whole", "ov", variant="bf16", precision="bf16")
    options, costs, hidden = [whole_option], {"whole": Cost(3e-3, error=0.03)}, {}
    for node in range(LENGTH):
        options.append(Option(1 << node, ("f32", node), "ov"))
        options.append(Option(1 << node, ("bf16", node), "ov", variant="bf16", precision="bf16"))
        costs["f32", node] = Cost(2e-3)
        hidden["bf16", node] = Cost(1e-3, error=0.003)
    return Problem(chain(LENGTH), options), costs, hidden


def test_parts_are_measured_if_the_fastest_plan_is_too_wrong():
    problem, costs, hidden = unlucky()
    measured = []

    def measure(keys):
        measured.extend(keys)
        return {key: hidden[key] for key in keys}

    plain = search_lazily(
        problem,
        measure,
        costs=costs | {("bf16", 0): hidden["bf16", 0]},
        estimator=AdditiveEstimator(problem, initial_optimism=1.0),
    )
    assert measured == []  # the whole is faster than any sum of parts
    known_costs = search_lower_error(
        problem, measure, plain.costs, errors=ErrorBudget(0.01), batch_size=2, budget=SearchBudget()
    )
    assert len(set(measured)) >= LENGTH - 2
    assert all(known_costs[key] == hidden[key] for key in measured)  # without the penalty
    errors = [
        expected_error(p.plan, known_costs)
        for p in select_plans(problem, known_costs, 1, ErrorBudget(0.01))
    ]
    assert any(0 < error <= 0.01 for error in errors)


def test_a_fastest_plan_within_the_tolerance_ends_the_search():
    problem, costs, _ = unlucky()

    def measure(keys):
        raise AssertionError(keys)

    assert (
        search_lower_error(
            problem, measure, costs, errors=ErrorBudget(0.03), batch_size=2, budget=SearchBudget()
        )
        == costs
    )


def test_each_toolchain_in_less_precision_has_a_plan():
    # The long region was measured on a busy machine; node 0 is nothing for the toolchain.
    all_but_first = (1 << LENGTH) - 2
    options = [Option(1 << node, ("f32", node), "ov") for node in range(LENGTH)]
    options += [Option(all_but_first, "long", "dnn"), Option(6, "short", "dnn", precision="bf16")]
    options.append(Option(all_but_first, "reduced", "dnn", variant="bf16", precision="bf16"))
    costs = {("f32", node): Cost(2e-3) for node in range(LENGTH)}
    costs |= {"long": Cost(9e-3), "short": Cost(1e-3, error=1e-3)}
    costs["reduced"] = Cost(60e-3, error=2e-3)
    selected = {p.name: p.plan for p in select_plans(Problem(chain(LENGTH), options), costs, 1)}
    plan = selected["mostly-dnn-bf16"]
    assert [option.key for option in plan.options] == [("f32", 0), "reduced"]
    assert plan.predicted_s == pytest.approx(62e-3)


@pytest.mark.parametrize(("long_s", "tried"), [(10e-3, True), (13e-3, False)])
def test_few_regions_are_tried_even_if_predicted_slower(long_s, tried):
    # Node 0 is a view, so that no region is the whole function.
    all_but_first = (1 << LENGTH) - 2
    options = [Option(1, HOST, HOST), Option(all_but_first, "long", "dnn")]
    options += [Option(1 << node, ("dnn", node), "dnn") for node in range(1, LENGTH)]
    costs = {("dnn", node): Cost(9e-3 / (LENGTH - 1)) for node in range(1, LENGTH)}
    costs |= {HOST: Cost(0.0), "long": Cost(long_s)}
    selected = {p.name: p for p in select_plans(Problem(chain(LENGTH), options), costs, 1)}
    assert ("mostly-dnn" in selected) == tried
    if tried:
        assert [option.key for option in selected["mostly-dnn"].plan.options] == [HOST, "long"]
        assert selected["mostly-dnn"].single == "dnn"


@pytest.mark.parametrize(
    ("tried", "limit"),
    [
        ([], None),
        ([(0.02, 0.009), (0.01, 0.003)], None),  # none beyond
        ([(0.02, 0.04)], 0.9 * 0.02 / 4),  # in proportion, a little below
        ([(0.02, 0.04), (0.03, 0.02)], 0.9 * 0.03 / 2),  # the closest one
        ([(0.02, math.inf)], 0.01),  # different integers: no proportion
        ([(0.018, 0.02), (0.008, 0.004)], 0.012),  # between the two
    ],
)
def test_tried_plans_calibrate_the_limit_of_expected_errors(tried, limit):
    calibration = ErrorCalibration(0.01)
    for expected, error in tried:
        calibration.add(expected, error)
    assert calibration.limit() == (None if limit is None else pytest.approx(limit))
    beyond = [expected for expected, error in tried if error > 0.01]
    assert calibration.next_below() == pytest.approx(min(beyond, default=0.0), rel=1e-5)
    assert all(calibration.next_below() < expected for expected in beyond)


def test_errors_are_multiplied_by_their_sensitivity():
    problem, costs = problem_and_costs()
    # Node 4, the worst by itself, hardly matters; node 0, the best by itself, matters most.
    sensitivities = {1 << 0: 50.0, 1 << 4: 0.01}

    def sensitivity(nodes):
        return sensitivities.get(nodes, 1.0)

    output_errors = with_output_errors(problem, costs, sensitivity)
    assert output_errors["bf16", 0].error == pytest.approx(0.05)
    assert output_errors["bf16", 4].error == pytest.approx(0.0003)
    assert output_errors["f32", 0] == costs["f32", 0]
    *_, last = lower_error_plans(
        PenalisedPlans.of(valid_space(problem, output_errors), output_errors), 0.01
    )
    reduced_nodes = {option.nodes.bit_length() - 1 for option in last.options if option.reduced}
    assert 4 in reduced_nodes
    assert 0 not in reduced_nodes


def test_options_of_one_key_have_the_highest_sensitivity():
    options = [Option(1, "k", "ov", precision="bf16"), Option(2, "k", "ov", precision="bf16")]
    output_errors = with_output_errors(
        Problem(chain(2), options), {"k": Cost(1.0, error=0.1)}, float
    )
    assert output_errors["k"].error == pytest.approx(0.2)


def test_plans_beyond_the_budget_give_way_to_penalised_ones():
    problem, costs = problem_and_costs()
    free = select_plans(problem, costs, 2)
    assert any(named.name == "best-1" and named.plan.reduced for named in free)
    budget = ErrorBudget(0.01, lambda nodes: 5.0)  # 0.036 in the regions, 0.18 at the outputs
    selected = select_plans(problem, costs, 2, budget)
    output_errors = with_output_errors(problem, costs, budget.sensitivity)
    reduced = [named for named in selected if named.plan.reduced]
    assert reduced
    assert all(expected_error(named.plan, output_errors) <= SLACK * 0.01 for named in reduced)
    best = next(named.plan for named in selected if named.name == "budget-best-1")
    assert 0 < expected_error(best, output_errors) <= 0.01
    real_s = sum(costs[option.key].seconds for option in best.options)
    assert best.predicted_s == pytest.approx(real_s)  # without the penalty
    assert any(not named.plan.reduced for named in selected)

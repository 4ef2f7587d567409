"""Plans under an error budget: what is refused at once, and plans with ever less error."""

from itertools import pairwise

import pytest

from collage.cost.cost import Cost
from collage.search import Problem
from collage.search.function import worth_assembling
from collage.search.problem import Option
from collage.search.reduced import SLACK, gentler_plans, within_budget
from collage.search.shortest_path import valid_space
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
    found = list(gentler_plans(valid_space(problem, costs), costs))
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
    found = worth_assembling(problem, costs, 2)
    assert any(plan.plan.reduced for plan in found)
    assert any(not plan.plan.reduced and plan.single for plan in found)
    assert len({plan.name for plan in found}) == len(found)
    assert len({plan.plan.options for plan in found}) == len(found)


def test_without_reduced_options_nothing_is_added():
    problem, costs = problem_and_costs()
    exact = Problem(problem.graph, [one for one in problem.options if not one.reduced])
    assert not any("fp32" in plan.name or "gentler" in plan.name
                   for plan in worth_assembling(exact, costs, 2))  # fmt: skip


@pytest.mark.parametrize(("error", "valid"), [(0.0, True), (SLACK * 0.01, True), (0.05, False)])
def test_a_candidate_beyond_all_hope_is_refused_with_its_error(error, valid):
    cost = Cost(1e-3, error=error)
    judged = within_budget(cost, 0.01)
    assert judged.is_valid is valid
    assert judged == cost if valid else "0.05 of the output's scale, above 0.04" in judged.reason

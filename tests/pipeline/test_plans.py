"""What is assembled after the first plans: the fastest within the error budget, then neighbours."""

from pathlib import Path

import pytest

from collage.pipeline.plans import TIGHTENED, Refinement, WholePlans
from collage.search.function import Enumerated, FunctionSearch
from collage.search.problem import Problem
from collage.search.reduced import ErrorBudget, PricedPlans, expected_error, gentler_plans
from collage.search.shortest_path import find_plan, valid_space
from collage.search.worth import NamedPlan
from collage.verify.gate import PlanExecutable
from tests.search.test_reduced import ERRORS, problem_and_costs


class Noted(WholePlans):
    """Plans that need no compiler."""

    def assemble(self, plan):
        self.named[plan.name] = plan
        return PlanExecutable(plan.name, Path(plan.name), plan.plan.predicted_s)


@pytest.fixture
def plans():
    problem, costs = problem_and_costs()
    fastest = NamedPlan("best-1", find_plan(problem, costs))
    search = FunctionSearch(
        Enumerated(None, (), problem, {}), costs, (fastest,), None, ErrorBudget(0.01)
    )
    found = Noted(search, None)
    found.assemble(fastest)
    found.assemble(NamedPlan("fp32-best-1", in_float32(problem, costs)))
    return found


def in_float32(problem, costs):
    exact = [option for option in problem.options if not option.reduced]
    return find_plan(Problem(problem.graph, exact), costs)


def test_a_plan_beyond_the_budget_gives_way_to_the_fastest_that_may_be_within(plans):
    costs = plans.search.costs
    refinement = Refinement(plans, 60.0)
    expected = expected_error(plans.named["best-1"].plan, costs)
    (first,) = refinement.next_heat("fp32-best-1", {"best-1": {"y": 0.015}})
    assert first.name == "within-1"
    tried = plans.named["within-1"].plan
    assert tried.reduced
    assert expected_error(tried, costs) <= 0.9 * expected * 0.01 / 0.015
    # No other plan lies between the two that are known now.
    errors = {"best-1": {"y": 0.015}, "within-1": {"y": 0.004}}
    names = [one.name for one in refinement.next_heat("within-1", errors)]
    assert not any(name.startswith("within") for name in names)


def test_where_no_plan_is_that_gentle_the_next_one_is_tried(plans):
    # Off by so much that nothing reduced should be within; yet the next gentler plan may be.
    refinement = Refinement(plans, 60.0)
    (first,) = refinement.next_heat("fp32-best-1", {"best-1": {"y": 10.0}})
    assert first.name == "within-1"
    costs = plans.search.costs
    assert expected_error(plans.named["within-1"].plan, costs) > 0
    kept = sum(option.reduced for option in plans.named["within-1"].plan.options)
    assert kept == len(ERRORS) - 1  # all but the worst


def test_the_search_for_it_ends(plans):
    refinement = Refinement(plans, 60.0)
    errors, names = {"best-1": {"y": 1.0}}, []
    while heat := refinement.next_heat("fp32-best-1", errors):
        names += [one.name for one in heat]
        errors |= {one.name: {"y": 0.5} for one in heat}
    assert sum(name.startswith("within") for name in names) <= TIGHTENED
    assert len(names) == len(set(names))


def test_without_time_nothing_is_offered(plans):
    refinement = Refinement(plans, 0.0)
    assert refinement.next_heat("fp32-best-1", {"best-1": {"y": 0.015}}) == []


def test_the_clock_of_refinement_starts_with_the_first_neighbours(plans, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("collage.pipeline.plans.time.monotonic", lambda: now[0])
    refinement = Refinement(plans, 10.0)
    now[0] = 100.0  # the first heats took their time
    assert refinement.next_heat("fp32-best-1", {})
    now[0] = 111.0
    assert refinement.next_heat("fp32-best-1", {}) == []


def test_plans_that_were_not_assembled_are_the_reserve(plans):
    problem, costs = problem_and_costs()
    *_, other = gentler_plans(PricedPlans.of(valid_space(problem, costs), costs), 0.01)
    fastest = plans.named["best-1"].plan
    search = plans.search
    plans.search = FunctionSearch(
        search.enumerated,
        costs,
        (NamedPlan("again", fastest), NamedPlan("best-1", other)),
        None,
    )
    (found,) = plans.fresh()
    assert (found.name, found.plan) == ("best-1-now", other)

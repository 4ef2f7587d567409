"""What is assembled after the first: the fastest within the error budget, then what costs in place favour."""

from pathlib import Path

import pytest

from collage.cost import Cost
from collage.errors import MeasureError
from collage.pipeline.plans import WholePlans
from collage.pipeline.refinement import TIGHTENED, Refinement
from collage.search.enumeration import Enumerated
from collage.search.function_search import FunctionSearch
from collage.search.in_context import Sighting
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan, Problem
from collage.search.reduced_precision import ErrorBudget, PricedPlans, expected_error, gentler_plans
from collage.search.shortest_path import find_plan, valid_space
from collage.verify import KernelProfile, Latency
from collage.verify.comparison_rounds import Standings
from collage.verify.gate import Decision
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import Verdict
from tests.support.reduced_plans import ERRORS, problem_and_costs
from tests.support.search_oracle import chain


class Noted(WholePlans):
    """Plans that need no compiler."""

    def assemble(self, plan):
        self.named[plan.name] = plan
        return PlanExecutable(plan.name, Path(plan.name), plan.plan.predicted_s)

    def by_position(self, name, seconds):
        return {int(position): one for position, one in seconds.items()}


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


def standing(leader, errors):
    def profile(name):
        raise MeasureError("not here")

    return Standings({leader: Latency(1.0)}, errors, profile)


def in_float32(problem, costs):
    exact = [option for option in problem.options if not option.reduced]
    return find_plan(Problem(problem.graph, exact), costs)


def test_a_plan_beyond_the_budget_gives_way_to_the_fastest_that_may_be_within(plans):
    costs = plans.search.costs
    refinement = Refinement(plans, 60.0)
    expected = expected_error(plans.named["best-1"].plan, costs)
    (first,) = refinement.next_heat(standing("fp32-best-1", {"best-1": {"y": 0.015}}))
    assert first.name == "within-1"
    tried = plans.named["within-1"].plan
    assert tried.reduced
    assert expected_error(tried, costs) <= 0.9 * expected * 0.01 / 0.015
    # No other plan lies between the two that are known now.
    errors = {"best-1": {"y": 0.015}, "within-1": {"y": 0.004}}
    names = [one.name for one in refinement.next_heat(standing("within-1", errors))]
    assert not any(name.startswith("within") for name in names)


def test_where_no_plan_is_that_gentle_the_next_one_is_tried(plans):
    # Off by so much that nothing reduced should be within; yet the next gentler plan may be.
    refinement = Refinement(plans, 60.0)
    (first,) = refinement.next_heat(standing("fp32-best-1", {"best-1": {"y": 10.0}}))
    assert first.name == "within-1"
    costs = plans.search.costs
    assert expected_error(plans.named["within-1"].plan, costs) > 0
    kept = sum(option.reduced for option in plans.named["within-1"].plan.options)
    assert kept == len(ERRORS) - 1  # all but the worst


def test_the_search_for_it_ends(plans):
    refinement = Refinement(plans, 60.0)
    errors, names = {"best-1": {"y": 1.0}}, []
    while heat := refinement.next_heat(standing("fp32-best-1", errors)):
        names += [one.name for one in heat]
        errors |= {one.name: {"y": 0.5} for one in heat}
    assert sum(name.startswith("within") for name in names) <= TIGHTENED
    assert len(names) == len(set(names))


def test_without_time_nothing_is_offered(plans):
    refinement = Refinement(plans, 0.0)
    assert refinement.next_heat(standing("fp32-best-1", {"best-1": {"y": 0.015}})) == []


def test_the_clock_of_refinement_starts_with_the_first_neighbours(plans, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("collage.pipeline.refinement.time.monotonic", lambda: now[0])
    refinement = Refinement(plans, 10.0)
    now[0] = 100.0  # the first heats took their time
    assert refinement.next_heat(standing("fp32-best-1", {}))
    now[0] = 111.0
    assert refinement.next_heat(standing("fp32-best-1", {})) == []


@pytest.fixture
def two_toolchains():
    """Three nodes that take `fast` 1 ms each alone; `steady` 1.2 ms, the last one less. One plan is known."""
    options = [Option(1 << n, f"{name}-{n}", name) for n in range(3) for name in ("fast", "steady")]
    problem = Problem(chain(3), options)
    costs = {one.key: Cost(1e-3 if one.backend == "fast" else 1.2e-3) for one in options}
    costs["steady-2"] = Cost(0.9e-3)
    search = FunctionSearch(Enumerated(None, (), problem, {}), costs, (), None)
    plans = Noted(search, None)
    plans.assemble(NamedPlan.of("best-1", find_plan(problem, costs)))
    return plans


def compared(plans, real_s, order, pace=1.0):
    """Say how plans stand whose kernels really take `real_s` by backend, on a machine with a pace."""

    def profile(name):
        kernels = {str(p): real_s[o.backend] for p, o in enumerate(plans.named[name].plan.options)}
        return KernelProfile(sum(kernels.values()), kernels)

    latencies = {name: Latency(pace * profile(name).call_s) for name in order}
    return Standings(latencies, {}, profile)


def test_a_toolchain_that_is_slower_in_place_gives_way(two_toolchains):
    real_s = {"fast": 2e-3, "steady": 1.3e-3}
    refinement = Refinement(two_toolchains, 60.0)
    order, rounds = ["best-1"], 0
    while heat := refinement.next_heat(compared(two_toolchains, real_s, order)):
        rounds += 1
        names = [*order, *(one.name for one in heat)]
        plans = two_toolchains.named
        order = sorted(
            names, key=lambda name: sum(real_s[o.backend] for o in plans[name].plan.options)
        )
    assert rounds < 8
    assert two_toolchains.named[order[0]].plan.backends == ("steady",)
    learnt = {one.name: one for one in refinement.learnt().plans}
    assert learnt[order[0]].plan.predicted_s == pytest.approx(3 * 1.3e-3)
    assert learnt["best-1"].plan.predicted_s == pytest.approx(2 * 2e-3 + 1.3e-3)
    assert len({one.plan.options for one in learnt.values()}) == len(learnt)


def steady_plan(plans):
    steady = plans.search.enumerated.problem.options[1::2]
    return Plan(tuple(steady), 3.3e-3)


def decided(chosen, latencies):
    """Return what came of a last comparison of plans that took these seconds."""
    found = {name: Latency(seconds) for name, seconds in latencies.items()}
    plan = PlanExecutable(chosen, Path(chosen), 0.0)
    passed = Verdict.NOT_SLOWER
    return Decision(plan, found[chosen], {}, found, {}, passed, "", finalists=tuple(found))


def test_predictions_are_told_at_the_pace_of_the_last_comparison(two_toolchains):
    real_s = {"fast": 2e-3, "steady": 1.3e-3}
    refinement = Refinement(two_toolchains, 60.0)
    heat = refinement.next_heat(compared(two_toolchains, real_s, ["best-1"]))
    order = ["best-1", *(one.name for one in heat)]
    refinement.next_heat(compared(two_toolchains, real_s, order, 0.8))
    usual_s = {one.name: one.plan.predicted_s for one in refinement.learnt().plans}
    chosen = order[1]
    assert usual_s["best-1"] == pytest.approx(
        0.8 * sum(real_s[o.backend] for o in two_toolchains.named["best-1"].plan.options), rel=0.01
    )
    # The machine is slower now. The chosen plan is slower by more, which is not the machine's doing.
    decision = decided(chosen, {"best-1": 1.2 * usual_s["best-1"], chosen: 1.5 * usual_s[chosen]})
    assert refinement.pace(decision) == pytest.approx(1.2)
    learnt = {one.name: one.plan for one in refinement.learnt(refinement.pace(decision)).plans}
    assert learnt[chosen].predicted_s == pytest.approx(1.2 * usual_s[chosen])
    assert refinement.pace(decided(chosen, {chosen: 1.5 * usual_s[chosen]})) == 1


def test_of_several_plans_the_one_that_is_most_like_the_chosen_one_tells_the_pace(two_toolchains):
    real_s = {"fast": 2e-3, "steady": 1.3e-3}
    refinement = Refinement(two_toolchains, 60.0)
    order = ["best-1"]
    while heat := refinement.next_heat(compared(two_toolchains, real_s, order)):
        order = [*(one.name for one in heat), *order]
    found = refinement.learnt().plans
    usual_s = {one.name: one.plan.predicted_s for one in found}
    by_steady = {
        sum(option.backend == "steady" for option in one.plan.options): one.name for one in found
    }
    chosen, near, far = by_steady[3], by_steady[2], by_steady[1]
    seconds = {far: 1.1 * usual_s[far], near: 1.4 * usual_s[near], chosen: 1.5 * usual_s[chosen]}
    assert refinement.pace(decided(chosen, seconds)) == pytest.approx(1.4)
    assert refinement.pace(decided(near, seconds)) == pytest.approx(1.5)
    del seconds[near]
    assert refinement.pace(decided(chosen, seconds)) == pytest.approx(1.1)


def test_plans_whose_kernels_were_not_seen_in_place_do_not_tell_the_pace(two_toolchains):
    refinement = Refinement(two_toolchains, 60.0)
    two_toolchains.assemble(NamedPlan.of("steady", steady_plan(two_toolchains)))
    refinement.next_heat(standing("best-1", {}))  # no profile, as on a GPU
    assert refinement.pace(decided("steady", {"best-1": 9.0, "steady": 8.0})) == 1


def test_where_one_toolchain_leads_the_next_plan_is_timed_in_place_too(two_toolchains):
    refinement = Refinement(two_toolchains, 60.0)
    two_toolchains.assemble(NamedPlan("steady", steady_plan(two_toolchains), "steady"))
    timed = []

    def profile(name):
        timed.append(name)
        options = two_toolchains.named[name].plan.options
        return KernelProfile(3e-3, {str(place): 1e-3 for place in range(len(options))})

    ranked = {"steady": Latency(3e-3), "best-1": Latency(3.2e-3)}
    refinement.next_heat(Standings(ranked, {}, profile))
    assert timed == ["steady", "best-1"]


def test_what_was_learnt_earlier_is_known_without_time_for_more(two_toolchains):
    seen = [Sighting("fast-0", 1e-3, 2e-3)]
    refinement = Refinement(two_toolchains, 0.0, seen)
    assert refinement.next_heat(standing("best-1", {})) == []
    (best,) = refinement.learnt().plans
    assert best.plan.predicted_s == pytest.approx(2 * 2.9e-3)
    assert refinement.in_place.seen == seen


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

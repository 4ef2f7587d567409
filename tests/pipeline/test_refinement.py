"""Proposals of refinement: the fastest plan within the error budget, then plans with low in-context costs."""

from pathlib import Path

import pytest

from collage.cost import Cost
from collage.errors import MeasureError
from collage.pipeline.plans import WholePlans
from collage.pipeline.refinement import MAX_WITHIN_BUDGET, Refinement
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import FunctionSearch
from collage.search.in_context import InContextSample
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan, Problem
from collage.search.reduced_precision import (
    ErrorBudget,
    PenalisedPlans,
    expected_error,
    lower_error_plans,
)
from collage.search.shortest_path import find_plan, valid_space
from collage.verify import KernelProfile, Latency
from collage.verify.comparison_rounds import RoundResults
from collage.verify.decision import Decision
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import Verdict
from tests.support.reduced_plans import ERRORS, problem_and_costs
from tests.support.search_oracle import chain


class PlansWithoutCompiler(WholePlans):
    """Records the plans instead of assembling them."""

    def assemble(self, plan):
        self.named[plan.name] = plan
        return PlanExecutable(plan.name, Path(plan.name), plan.plan.predicted_s)

    def by_position(self, name, seconds):
        return {int(position): kernel_s for position, kernel_s in seconds.items()}


@pytest.fixture
def plans():
    problem, costs = problem_and_costs()
    fastest = NamedPlan("best-1", find_plan(problem, costs))
    search = FunctionSearch(
        EnumeratedFunction(None, (), problem, {}), costs, (fastest,), None, ErrorBudget(0.01)
    )
    plans = PlansWithoutCompiler(search, None)
    plans.assemble(fastest)
    plans.assemble(NamedPlan("fp32-best-1", in_float32(problem, costs)))
    return plans


def round_results(leader, errors):
    def profile(name):
        raise MeasureError("not here")

    return RoundResults({leader: Latency(1.0)}, errors, profile)


def in_float32(problem, costs):
    exact = [option for option in problem.options if not option.reduced]
    return find_plan(Problem(problem.graph, exact), costs)


def test_beyond_the_budget_the_fastest_plan_within_is_next(plans):
    costs = plans.search.costs
    refinement = Refinement(plans, 60.0)
    expected = expected_error(plans.named["best-1"].plan, costs)
    (first,) = refinement.propose_plans(round_results("fp32-best-1", {"best-1": {"y": 0.015}}))
    assert first.name == "within-1"
    tried = plans.named["within-1"].plan
    assert tried.reduced
    assert expected_error(tried, costs) <= 0.9 * expected * 0.01 / 0.015
    # No other plan lies between these two.
    errors = {"best-1": {"y": 0.015}, "within-1": {"y": 0.004}}
    names = [plan.name for plan in refinement.propose_plans(round_results("within-1", errors))]
    assert not any(name.startswith("within") for name in names)


def test_without_a_plan_within_the_next_lower_error_is_tried(plans):
    # The error is so large that no reduced plan should be within; the next lower error may be.
    refinement = Refinement(plans, 60.0)
    (first,) = refinement.propose_plans(round_results("fp32-best-1", {"best-1": {"y": 10.0}}))
    assert first.name == "within-1"
    costs = plans.search.costs
    assert expected_error(plans.named["within-1"].plan, costs) > 0
    reduced_count = sum(option.reduced for option in plans.named["within-1"].plan.options)
    assert reduced_count == len(ERRORS) - 1  # all but the worst


def test_the_search_for_a_plan_within_the_budget_ends(plans):
    refinement = Refinement(plans, 60.0)
    errors, names = {"best-1": {"y": 1.0}}, []
    while proposed := refinement.propose_plans(round_results("fp32-best-1", errors)):
        names += [plan.name for plan in proposed]
        errors |= {plan.name: {"y": 0.5} for plan in proposed}
    assert sum(name.startswith("within") for name in names) <= MAX_WITHIN_BUDGET
    assert len(names) == len(set(names))


def test_without_time_nothing_is_proposed(plans):
    refinement = Refinement(plans, 0.0)
    assert refinement.propose_plans(round_results("fp32-best-1", {"best-1": {"y": 0.015}})) == []


def test_the_time_limit_starts_with_the_first_proposal(plans, monkeypatch):
    clock_s = [0.0]
    monkeypatch.setattr("collage.pipeline.refinement.time.monotonic", lambda: clock_s[0])
    refinement = Refinement(plans, 10.0)
    clock_s[0] = 100.0  # the first rounds took long
    assert refinement.propose_plans(round_results("fp32-best-1", {}))
    clock_s[0] = 111.0
    assert refinement.propose_plans(round_results("fp32-best-1", {})) == []


@pytest.fixture
def two_toolchains():
    """Three nodes: 1 ms each alone on `fast`, 1.2 ms on `steady` (the last 0.9 ms); one assembled plan."""
    options = [Option(1 << n, f"{name}-{n}", name) for n in range(3) for name in ("fast", "steady")]
    problem = Problem(chain(3), options)
    costs = {option.key: Cost(1e-3 if option.backend == "fast" else 1.2e-3) for option in options}
    costs["steady-2"] = Cost(0.9e-3)
    search = FunctionSearch(EnumeratedFunction(None, (), problem, {}), costs, (), None)
    plans = PlansWithoutCompiler(search, None)
    plans.assemble(NamedPlan.of("best-1", find_plan(problem, costs)))
    return plans


def profiled_results(plans, real_s, order, speed_factor=1.0):
    """Return results of plans whose kernels take `real_s` by backend, scaled by a machine speed factor."""

    def profile(name):
        kernels = {str(p): real_s[o.backend] for p, o in enumerate(plans.named[name].plan.options)}
        return KernelProfile(sum(kernels.values()), kernels)

    latencies = {name: Latency(speed_factor * profile(name).call_s) for name in order}
    return RoundResults(latencies, {}, profile)


def test_a_toolchain_with_higher_in_context_costs_gives_way(two_toolchains):
    real_s = {"fast": 2e-3, "steady": 1.3e-3}
    refinement = Refinement(two_toolchains, 60.0)
    order, rounds = ["best-1"], 0
    while proposed := refinement.propose_plans(profiled_results(two_toolchains, real_s, order)):
        rounds += 1
        names = [*order, *(plan.name for plan in proposed)]
        plans = two_toolchains.named
        order = sorted(
            names, key=lambda name: sum(real_s[o.backend] for o in plans[name].plan.options)
        )
    assert rounds < 8
    assert two_toolchains.named[order[0]].plan.backends == ("steady",)
    updated = {named.name: named for named in refinement.updated_search().plans}
    assert updated[order[0]].plan.predicted_s == pytest.approx(3 * 1.3e-3)
    assert updated["best-1"].plan.predicted_s == pytest.approx(2 * 2e-3 + 1.3e-3)
    assert len({named.plan.options for named in updated.values()}) == len(updated)


def steady_plan(plans):
    steady = plans.search.enumerated.problem.options[1::2]
    return Plan(tuple(steady), 3.3e-3)


def decided(chosen, latencies):
    """Return the decision after a final round with these seconds."""
    measured = {name: Latency(seconds) for name, seconds in latencies.items()}
    plan = PlanExecutable(chosen, Path(chosen), 0.0)
    return Decision(
        chosen=plan,
        latency=measured[chosen],
        baselines={},
        latencies=measured,
        verdict=Verdict.NOT_SLOWER,
        reason="",
        finalists=tuple(measured),
    )


def test_predictions_are_scaled_by_the_speed_factor(two_toolchains):
    real_s = {"fast": 2e-3, "steady": 1.3e-3}
    refinement = Refinement(two_toolchains, 60.0)
    proposed = refinement.propose_plans(profiled_results(two_toolchains, real_s, ["best-1"]))
    order = ["best-1", *(plan.name for plan in proposed)]
    refinement.propose_plans(profiled_results(two_toolchains, real_s, order, 0.8))
    predicted_s = {
        named.name: named.plan.predicted_s for named in refinement.updated_search().plans
    }
    chosen = order[1]
    assert predicted_s["best-1"] == pytest.approx(
        0.8 * sum(real_s[o.backend] for o in two_toolchains.named["best-1"].plan.options), rel=0.01
    )
    # The machine is slower now; the chosen plan is slower by more, for another reason.
    decision = decided(
        chosen, {"best-1": 1.2 * predicted_s["best-1"], chosen: 1.5 * predicted_s[chosen]}
    )
    assert refinement.speed_factor(decision) == pytest.approx(1.2)
    updated = {
        named.name: named.plan
        for named in refinement.updated_search(refinement.speed_factor(decision)).plans
    }
    assert updated[chosen].predicted_s == pytest.approx(1.2 * predicted_s[chosen])
    assert refinement.speed_factor(decided(chosen, {chosen: 1.5 * predicted_s[chosen]})) == 1


def test_the_most_similar_plan_gives_the_speed_factor(two_toolchains):
    real_s = {"fast": 2e-3, "steady": 1.3e-3}
    refinement = Refinement(two_toolchains, 60.0)
    order = ["best-1"]
    while proposed := refinement.propose_plans(profiled_results(two_toolchains, real_s, order)):
        order = [*(plan.name for plan in proposed), *order]
    updated = refinement.updated_search().plans
    predicted_s = {named.name: named.plan.predicted_s for named in updated}
    by_steady = {
        sum(option.backend == "steady" for option in named.plan.options): named.name
        for named in updated
    }
    chosen, near, far = by_steady[3], by_steady[2], by_steady[1]
    seconds = {
        far: 1.1 * predicted_s[far],
        near: 1.4 * predicted_s[near],
        chosen: 1.5 * predicted_s[chosen],
    }
    assert refinement.speed_factor(decided(chosen, seconds)) == pytest.approx(1.4)
    assert refinement.speed_factor(decided(near, seconds)) == pytest.approx(1.5)
    del seconds[near]
    assert refinement.speed_factor(decided(chosen, seconds)) == pytest.approx(1.1)


def test_unsampled_plans_give_no_speed_factor(two_toolchains):
    refinement = Refinement(two_toolchains, 60.0)
    two_toolchains.assemble(NamedPlan.of("steady", steady_plan(two_toolchains)))
    refinement.propose_plans(round_results("best-1", {}))  # no profile, as on a GPU
    assert refinement.speed_factor(decided("steady", {"best-1": 9.0, "steady": 8.0})) == 1


def test_if_one_toolchain_leads_the_next_plan_is_profiled_too(two_toolchains):
    refinement = Refinement(two_toolchains, 60.0)
    two_toolchains.assemble(NamedPlan("steady", steady_plan(two_toolchains), "steady"))
    timed = []

    def profile(name):
        timed.append(name)
        options = two_toolchains.named[name].plan.options
        return KernelProfile(3e-3, {str(place): 1e-3 for place in range(len(options))})

    ranked = {"steady": Latency(3e-3), "best-1": Latency(3.2e-3)}
    refinement.propose_plans(RoundResults(ranked, {}, profile))
    assert timed == ["steady", "best-1"]


def test_samples_of_earlier_runs_count_without_time_for_more(two_toolchains):
    samples = [InContextSample("fast-0", 1e-3, 2e-3)]
    refinement = Refinement(two_toolchains, 0.0, samples)
    assert refinement.propose_plans(round_results("best-1", {})) == []
    (best,) = refinement.updated_search().plans
    assert best.plan.predicted_s == pytest.approx(2 * 2.9e-3)
    assert refinement.in_context.samples == samples


def test_plans_not_yet_assembled_are_fallback_plans(plans):
    problem, costs = problem_and_costs()
    *_, lowest_error = lower_error_plans(
        PenalisedPlans.of(valid_space(problem, costs), costs), 0.01
    )
    fastest = plans.named["best-1"].plan
    search = plans.search
    plans.search = FunctionSearch(
        search.enumerated,
        costs,
        (NamedPlan("again", fastest), NamedPlan("best-1", lowest_error)),
        None,
    )
    (fallback,) = plans.fresh()
    assert (fallback.name, fallback.plan) == ("best-1-now", lowest_error)

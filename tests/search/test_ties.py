"""Costs that do not differ beyond their intervals fall back to the order of the backends."""

from dataclasses import replace

import pytest

from collage.cost import Cost
from collage.search.plan_selection import select_plans
from collage.search.problem import Option, Plan, Problem
from collage.search.shortest_path import find_plan
from collage.search.ties import MAX_TIE_SHARE, Ties
from tests.support.search_oracle import chain

LENGTH = 4


def options(**changes):
    """Two backends on every node, `first` preferred; `changes` apply to the options of `first`."""
    firsts = [Option(1 << node, f"first-{node}", "first", 1) for node in range(LENGTH)]
    seconds = [Option(1 << node, f"second-{node}", "second", 2) for node in range(LENGTH)]
    return [*(replace(option, **changes) for option in firsts), *seconds]


def cost(seconds, spread=0.05):
    return Cost(seconds, (1 - spread) * seconds, (1 + spread) * seconds)


def costs_of(firsts, seconds, **spreads):
    """Costs of the backends by node; a node without an entry costs 1 ms on both."""
    table = {}
    for name, by_node in (("first", firsts), ("second", seconds)):
        for node in range(LENGTH):
            table[f"{name}-{node}"] = cost(by_node.get(node, 1e-3), spreads.get(name, 0.05))
    return table


def backends_after(problem, costs):
    plan = Ties(problem, costs).preferred(find_plan(problem, costs))
    return "".join(option.backend[0] for option in plan.options)


def test_a_tie_goes_to_the_preferred_backend():
    problem = Problem(chain(LENGTH), options())
    costs = costs_of({}, {2: 0.999e-3})
    assert [o.backend for o in find_plan(problem, costs).options] == [
        *["first"] * 2,
        "second",
        "first",
    ]
    assert backends_after(problem, costs) == "ffff"


def test_a_difference_beyond_the_intervals_is_none():
    problem = Problem(chain(LENGTH), options())
    costs = costs_of({}, {2: 0.999e-3}, second=0.0005)
    assert backends_after(problem, costs) == "ffsf"
    costs = costs_of({}, {2: 0.999e-3}, first=0.0005)
    assert backends_after(problem, costs) == "ffsf"


def test_all_ties_together_stay_within_the_share():
    """Each exchange costs 0.4 % of one node, and 0.1 % of the plan; five times that would be too much."""
    problem = Problem(chain(LENGTH), options())
    gain = 4 * MAX_TIE_SHARE * 0.4
    costs = costs_of({}, dict.fromkeys(range(LENGTH), (1 - gain) * 0.001))
    plan = find_plan(problem, costs)
    preferred = Ties(problem, costs).preferred(plan)
    assert backends_after(problem, costs) == "ffss"
    assert plan.predicted_s < preferred.predicted_s <= (1 + MAX_TIE_SHARE) * plan.predicted_s


@pytest.mark.parametrize(
    "changes", [{"precision": "bf16"}, {"graph_capturable": False}, {"priority": 3}]
)
def test_other_numbers_launches_or_priorities_are_no_tie(changes):
    problem = Problem(chain(LENGTH), options(**changes))
    costs = costs_of({}, dict.fromkeys(range(LENGTH), 0.999e-3))
    assert backends_after(problem, costs) == "ssss"


def test_backends_in_conflict_are_not_mixed_by_a_tie():
    conflicts = {"first": {"second"}, "second": {"first"}}
    problem = Problem(chain(LENGTH), options(), conflicts=conflicts)
    costs = costs_of({0: 1.2e-3}, dict.fromkeys(range(LENGTH), 0.999e-3))
    assert backends_after(problem, costs) == "ssss"


def test_without_ties_the_plan_is_the_same_object():
    problem = Problem(chain(LENGTH), options())
    costs = costs_of({}, dict.fromkeys(range(LENGTH), 0.5e-3))
    plan = find_plan(problem, costs)
    assert Ties(problem, costs).preferred(plan) is plan


def test_selected_mixes_have_the_preferred_backends():
    """A plan of one backend stays one: every toolchain's own plan is compared."""
    problem = Problem(chain(LENGTH), options())
    costs = costs_of({0: 2e-3}, {2: 0.999e-3, 3: 2e-3})
    selected = {named.name: named for named in select_plans(problem, costs, 1)}
    mix: Plan = selected["best-1"].plan
    assert [option.backend for option in mix.options] == ["second", *["first"] * 3]
    assert selected["second-only"].plan.backends == ("second",)

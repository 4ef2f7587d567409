"""The least-cost plan: a shortest path through the state space.

All steps lead forward, so one pass from the last state to the first finds the least cost from every state to
the end, without a priority queue; a dead end is left out (upstream aborts there, defect D11). Invalid options
never enter (D9), unknown ones neither (D8).

Ties, in this order: the smaller sum of priority x nodes (the preferred backend), fewer options (fewer calls),
and then the lexicographically first sequence of options in the order of `Problem.ordered`. The first two are
the low bits of the weights below; the last follows from the backward pass, which keeps the first of equals.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from collage.graph.index_set import first, indices
from collage.search.graph_launches import predicted_s
from collage.search.problem import FEMTOSECONDS, UNKNOWN, Costs, Option, Plan, Problem, femtoseconds
from collage.search.state_space import Edges, StateSpace, build_state_space
from collage.search.uncovered import no_cover

Weight = int
"""Femtoseconds in the high bits, then sum of priority x nodes, then number of options."""

_COUNT_BITS = 24
_TIE_BITS = 64


def find_plan(problem: Problem, costs: Costs) -> Plan:
    """Return the plan with the least sum of costs and boundary costs.

    Raises:
        SearchError: valid options cover no plan; the message has the first dead end and the reasons.
    """
    space = valid_space(problem, costs)
    plan = least_plan(space, lambda option: costs[option.key].seconds)
    if plan is None:
        raise no_cover(space, costs)
    return plan


def valid_space(problem: Problem, costs: Costs) -> StateSpace:
    """Build the state space of the options with a known and valid cost."""
    return build_state_space(problem, lambda option: is_measured(option, costs))


def is_measured(option: Option, costs: Costs) -> bool:
    """Tell whether the option's cost is known and valid."""
    return costs.get(option.key, UNKNOWN).is_valid


def least_plan(space: StateSpace, seconds: Callable[[Option], float | None]) -> Plan | None:
    """Return the best plan when options cost `seconds` (None leaves an option out); None without a plan."""
    weights = option_weights(space, seconds)
    remaining = remaining_weights(space, weights)
    least_weight = remaining[0]
    if least_weight is None:
        return None
    return make_plan(space.problem, walk(space, weights, remaining), seconds_of(least_weight))


def surcharged_plan(
    space: StateSpace, costs: Costs, surcharge_s: Callable[[Option], float | None]
) -> Plan | None:
    """Return the best plan when every option has a surcharge (None leaves an option out).

    The plan is predicted without the surcharges; None without a plan.
    """

    def seconds(option: Option) -> float | None:
        surcharge = surcharge_s(option)
        return None if surcharge is None else costs[option.key].seconds + surcharge

    plan = least_plan(space, seconds)
    if plan is None:
        return None
    return replace(plan, predicted_s=predicted_s(space.problem, costs, plan))


def option_weights(
    space: StateSpace, seconds: Callable[[Option], float | None]
) -> list[Weight | None]:
    """Return the weight of every option of the space; None from `seconds` leaves an option out."""
    return [option_weight(space.problem, option, seconds(option)) for option in space.options]


def option_weight(problem: Problem, option: Option, seconds: float | None) -> Weight | None:
    """Return the weight of one option with a kernel of `seconds`; None without them."""
    if seconds is None:
        return None
    cost_fs = femtoseconds(seconds) + problem.boundary_fs(option)
    return (cost_fs << _TIE_BITS) + (option.priority * option.size << _COUNT_BITS) + 1


def seconds_of(weight: Weight) -> float:
    """Return the seconds in a weight."""
    return (weight >> _TIE_BITS) / FEMTOSECONDS


def gap_s(slower: Weight, faster: Weight) -> float:
    """Return the seconds between two weights; ties within a femtosecond are exactly 0."""
    return ((slower >> _TIE_BITS) - (faster >> _TIE_BITS)) / FEMTOSECONDS


def remaining_weights(space: StateSpace, weights: Sequence[Weight | None]) -> list[Weight | None]:
    """Return the least weight from each state to the end; None for dead ends."""
    remaining: list[Weight | None] = [None] * len(space.steps)
    for state in reversed(range(len(space.steps))):
        best = 0 if state == space.final else None
        for option, next_state in space.steps[state]:
            weight, rest_weight = weights[option], remaining[next_state]
            if (
                weight is not None
                and rest_weight is not None
                and (best is None or weight + rest_weight < best)
            ):
                best = weight + rest_weight
        remaining[state] = best
    return remaining


def walk(
    space: StateSpace,
    weights: Sequence[Weight | None],
    remaining: Sequence[Weight | None],
) -> list[Option]:
    """Return the options on the best path, which must exist, in the order of their first nodes."""
    chosen, state = [], 0
    while state != space.final:
        for option, next_state in space.steps[state]:
            weight, rest_weight = weights[option], remaining[next_state]
            if (
                weight is not None
                and rest_weight is not None
                and weight + rest_weight == remaining[state]
            ):
                chosen.append(option)
                state = next_state
                break
        else:
            raise AssertionError("a state that can be completed has a best step")
    return [space.options[number] for number in chosen]


def make_plan(problem: Problem, chosen: Sequence[Option], predicted_s: float) -> Plan:
    """Order the disjoint options of an acyclic cover topologically; ties go by first node."""
    edges = Edges(problem.graph)
    owner = {}
    for position, option in enumerate(chosen):
        for node in indices(option.nodes):
            owner[node] = position
    needs: list[set[int]] = [set() for _ in chosen]
    feeds: list[set[int]] = [set() for _ in chosen]
    for node, before in enumerate(edges.before):
        for source in before:
            if owner[source] != owner[node]:
                needs[owner[node]].add(owner[source])
                feeds[owner[source]].add(owner[node])
    ready = [
        (first(option.nodes), position)
        for position, option in enumerate(chosen)
        if not needs[position]
    ]
    heapify(ready)
    ordered = []
    while ready:
        _, position = heappop(ready)
        ordered.append(chosen[position])
        for later in feeds[position]:
            needs[later].discard(position)
            if not needs[later]:
                heappush(ready, (first(chosen[later].nodes), later))
    if len(ordered) != len(chosen):
        raise AssertionError("the state space holds acyclic covers only")
    return Plan(tuple(ordered), predicted_s)

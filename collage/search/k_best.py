"""The k best distinct plans, for whole-plan measurement.

Every cover is exactly one path of the state space, so distinct paths are distinct plans. Going
backwards, each state keeps its k best completions; they are merged lazily from those of its
successors with a heap (Huang and Chiang's k-best algorithm): O(steps + states x k x log steps).
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import Weight, make_plan, option_weights, seconds_of, valid_space
from collage.search.state_space import StateSpace
from collage.search.uncovered import no_cover


class Completion(NamedTuple):
    """The `rank`-th best completion of `state` after step number `step`; ordered by weight first."""

    weight: Weight
    step: int
    rank: int


def find_plans(problem: Problem, costs: Costs, k: int) -> list[Plan]:
    """Return up to `k` best plans, best first; ties are those of `find_plan`.

    Two options with the same nodes and different keys or backends make different plans.

    Raises:
        SearchError: valid options cover no plan.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return least_plans(valid_space(problem, costs), costs, k)


def least_plans(space: StateSpace, costs: Costs, k: int) -> list[Plan]:
    """Return up to `k` best plans in a space of valid options; see `find_plans`."""
    weights = option_weights(space, lambda option: costs[option.key].seconds)
    completions = _completions(space, weights, k)
    if not completions[0]:
        raise no_cover(space, costs)
    return [
        make_plan(space.problem, _walk(space, completions, rank), seconds_of(completion.weight))
        for rank, completion in enumerate(completions[0])
    ]


def _completions(
    space: StateSpace, weights: Sequence[Weight | None], k: int
) -> list[list[Completion]]:
    completions: list[list[Completion]] = [[] for _ in space.steps]
    for state in reversed(range(len(space.steps))):
        if state == space.final:
            completions[state] = [Completion(0, -1, 0)]
            continue
        heap = []
        for step, (option, next_state) in enumerate(space.steps[state]):
            weight = weights[option]
            if weight is not None and completions[next_state]:
                heap.append(Completion(weight + completions[next_state][0].weight, step, 0))
        heapify(heap)
        while heap and len(completions[state]) < k:
            best = heap[0]
            completions[state].append(best)
            next_state = space.steps[state][best.step][1]
            next_completions, rank = completions[next_state], best.rank + 1
            if rank < len(next_completions):
                weight = (
                    best.weight - next_completions[best.rank].weight + next_completions[rank].weight
                )
                heapreplace(heap, Completion(weight, best.step, rank))
            else:
                heappop(heap)
    return completions


def _walk(space: StateSpace, completions: list[list[Completion]], rank: int) -> list[Option]:
    chosen, state = [], 0
    while state != space.final:
        completion = completions[state][rank]
        option, state = space.steps[state][completion.step]
        rank = completion.rank
        chosen.append(space.options[option])
    return chosen

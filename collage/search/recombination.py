"""Recombination: parts of good plans joined to new ones (the second level of the Collage paper).

The additive model adds costs of kernels. Inside an executable a kernel's time depends on its neighbours: on
what they leave in the caches, on the clock that they run at. A part of a plan that was measured whole holds
these effects among its own kernels. So measured plans are cut where no region crosses, and parts of several
plans make a child; its predicted latency is the sum of its parts as they were measured in their parents.

The paper crosses bit strings at random and lets measurement select, for tens of minutes. Here few plans can
be assembled, so the children are exact: for 1, 2, ... `MAX_SWITCHES` changes from one parent to another,
the child with the least predicted latency. Each change puts one kernel beside new neighbours, so children
with few changes are predicted best and those with many gain most. It is a shortest path over (node, parent,
changes).

Time is O(nodes x parents^2 x changes).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from collage.graph.index_set import IndexSet, first
from collage.search.graph_launches import is_captured
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import make_plan

MAX_SWITCHES = 2
"""Largest number of changes of the parent in a child. More gain nothing (`benchmarks/refinement.py`)."""


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan that ran whole.

    Attributes:
        plan: the plan.
        kernels_s: seconds of its kernels inside the executable by position in the plan; empty where
            kernels were not timed. Views have none.
    """

    plan: Plan
    kernels_s: Mapping[int, float]


@dataclass(frozen=True)
class Part:
    """The regions of a plan between two neighbouring cuts, the node of the second cut, and their seconds."""

    options: tuple[Option, ...]
    end: int
    seconds: float


class _Step(NamedTuple):
    """The best way to a state: its seconds, and the state before it with the part between."""

    seconds: float
    before: "_State | None"
    part: Part | None


class _State(NamedTuple):
    """The parts up to `node` are chosen; the last one is from the plan number `parent`."""

    node: int
    parent: int
    switches: int


def recombinations(problem: Problem, costs: Costs, parents: Sequence[MeasuredPlan]) -> list[Plan]:
    """Return the predicted fastest child for each number of switches, the fastest first.

    Args:
        problem: the function's search problem.
        costs: costs by option key, for kernels without a time of their own.
        parents: measured plans, best first. Those that differ from the first in CUDA graphs are left out.
    """
    alike = [
        parent for parent in parents if is_captured(parent.plan) == is_captured(parents[0].plan)
    ]
    nodes = len(problem.graph)
    sides = [parts_by_start(problem, costs, parent) for parent in alike]
    steps = _least_steps(sides, nodes)
    children: dict[tuple[Option, ...], Plan] = {}
    for switches in range(1, MAX_SWITCHES + 1):
        ends = [_State(nodes, parent, switches) for parent in range(len(sides))]
        reached = [state for state in ends if state in steps]
        if reached:
            best = min(reached, key=lambda state: (steps[state].seconds, state))
            options = [option for part in _path(steps, best) for option in part.options]
            if not _has_conflict(problem, options):
                child = make_plan(problem, options, steps[best].seconds)
                children.setdefault(child.options, child)
    for parent in parents:
        children.pop(parent.plan.options, None)
    return sorted(children.values(), key=lambda child: (child.predicted_s, repr(child.options)))


def parts_by_start(problem: Problem, costs: Costs, parent: MeasuredPlan) -> dict[int, Part]:
    """Cut a plan at every node that no region crosses; return its parts by first node."""
    crossed: IndexSet = 0
    for option in parent.plan.options:
        crossed |= (1 << option.nodes.bit_length()) - (1 << (first(option.nodes) + 1))
    nodes = len(problem.graph)
    cuts = [node for node in range(nodes + 1) if not crossed >> node & 1]
    parts: dict[int, Part] = {}
    for begin, end in pairwise(cuts):
        inside = [
            (position, option)
            for position, option in enumerate(parent.plan.options)
            if begin <= first(option.nodes) < end
        ]
        seconds = sum(
            parent.kernels_s.get(position, _isolated_s(problem, costs, option))
            for position, option in inside
        )
        parts[begin] = Part(tuple(option for _, option in inside), end, seconds)
    return parts


def _isolated_s(problem: Problem, costs: Costs, option: Option) -> float:
    return costs[option.key].seconds + problem.dispatch_overhead_s.get(option.backend, 0.0)


def _least_steps(sides: Sequence[Mapping[int, Part]], nodes: int) -> dict[_State, _Step]:
    """Return the best way to every state; nodes are visited in order, so each is complete when it is left."""
    steps = {_State(0, parent, 0): _Step(0.0, None, None) for parent in range(len(sides))}
    for node in range(nodes):
        for parent, switches in [
            (parent, switches)
            for switches in range(MAX_SWITCHES + 1)
            for parent in range(len(sides))
        ]:
            state = _State(node, parent, switches)
            if state not in steps:
                continue
            for following, parts in enumerate(sides):
                changes = switches + (following != parent)
                part = parts.get(node)
                if part is None or changes > MAX_SWITCHES or (node == 0 and following != parent):
                    continue
                seconds = steps[state].seconds + part.seconds
                target = _State(part.end, following, changes)
                if target not in steps or seconds < steps[target].seconds:
                    steps[target] = _Step(seconds, state, part)
    return steps


def _path(steps: Mapping[_State, _Step], state: _State) -> Iterator[Part]:
    """Yield the parts on the way to a state, the last first."""
    step = steps[state]
    while step.part is not None and step.before is not None:
        yield step.part
        step = steps[step.before]


def _has_conflict(problem: Problem, options: Sequence[Option]) -> bool:
    backends = {option.backend for option in options}
    return any(problem.conflicts.get(backend, frozenset()) & backends for backend in backends)

"""Upstream's mock cost and its two backends, for tests that search over rules' candidates.

A group costs base * (1 + 0.9 + 0.9^2 + ...), one term for each operator; the host is free. The
offloading backend takes relu, add and concat, and joins anything; TVM takes everything by its kinds.
"""

from dataclasses import dataclass

from collage.cost import Cost
from collage.graph.index_set import indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraphConfig
from collage.rules import (
    HOST,
    AllSimple,
    Combine,
    Composite,
    DFPattern,
    Host,
    OnlyValid,
    OpCallByKind,
    PartitionSpec,
    Primitive,
    TupleArg,
    TupleProj,
    Union,
    coalesce,
    op,
)
from collage.rules.combine import FUSE_OPS_KINDS
from collage.search.problem import Option, Problem
from collage.search.shortest_path import find_plan

OFFLOADED = ("Relu", "Add", "Concat")
ALL_KINDS = ((OpPatternKind.OUT_ELEMWISE_FUSABLE, OpPatternKind.OUT_ELEMWISE_FUSABLE),)


def tvm_rule(depth):
    combiners = (AllSimple(FUSE_OPS_KINDS), TupleArg(), TupleProj())
    config = SubGraphConfig(max_exits=1, max_depth=depth, allow_escaping=False)
    return OnlyValid(Combine(OpCallByKind(), combiners, max_depth=depth), config)


def byoc_rule(depth):
    table = Union(tuple(Composite(name, DFPattern(name, op(name))) for name in OFFLOADED))
    config = SubGraphConfig(max_exits=1, max_depth=depth, allow_escaping=False)
    return Primitive(OnlyValid(Combine(table, (AllSimple(ALL_KINDS),), max_depth=depth), config))


@dataclass(frozen=True)
class Outcome:
    """Chosen groups after coalescing, as (backend, node names), without the host's, and the cost."""

    groups: list[tuple[str, tuple[str, ...]]]
    total: float


def list_candidates(graph, rules):
    """Candidates of {backend: rule}, and the host's."""
    candidates = Host().candidates(graph, PartitionSpec(HOST))
    for backend, rule in rules.items():
        candidates += rule.candidates(graph, PartitionSpec(backend))
    return candidates


def mock_cost(candidate, bases):
    if candidate.is_host:
        return 0.0
    return bases[candidate.backend] * sum(0.9**k for k in range(candidate.sub_graph.size))


def search(candidates, costs, priorities=None):
    """Return the chosen candidates and the plan's cost; `costs` maps candidate keys to costs."""
    graph = candidates[0].sub_graph.graph
    by_key = {candidate.key: candidate for candidate in candidates}
    ranks = priorities or {}
    options = [
        Option(candidate.inside, candidate.key, candidate.backend, ranks.get(candidate.backend, 0))
        for candidate in candidates
    ]
    plan = find_plan(Problem(graph, options), costs)
    return [by_key[option.key] for option in plan.options], plan.predicted_s


def partition(graph, bases, depths):
    rules = {"tvm": tvm_rule(depths[0]), "byoc": byoc_rule(depths[1])}
    candidates = list_candidates(graph, rules)
    costs = {candidate.key: Cost(mock_cost(candidate, bases)) for candidate in candidates}
    chosen, total = search(candidates, costs)
    byoc = [candidate for candidate in chosen if candidate.backend == "byoc"]
    others = [candidate for candidate in chosen if candidate.backend == "tvm"]
    groups = sorted([*coalesce(byoc), *others], key=lambda candidate: candidate.order)
    names = [n.name for n in graph.nodes]
    return Outcome(
        [
            (candidate.backend, tuple(names[i] for i in indices(candidate.inside)))
            for candidate in groups
        ],
        total,
    )

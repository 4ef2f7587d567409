"""Upstream's mock cost and its two backends, for tests that search over rules' candidates.

A group costs base * (1 + 0.9 + 0.9^2 + ...), one term for each operator; the host is free. The
offloading backend takes relu, add and concat, and joins anything; TVM takes everything by its kinds.
"""

from dataclasses import dataclass

from collage.cost import Cost
from collage.graph.index_set import first, indices
from collage.graph.op_pattern import OpPatternKind
from collage.graph.sub_graph import SubGraphConfig
from collage.measure.measurement_request import MeasurementRequest
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
    find_candidates,
    op,
)
from collage.rules.backend_style import BackendStyle
from collage.rules.combine import FUSE_OPS_KINDS
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import SearchLimits, search_function
from collage.search.problem import Option, Problem
from collage.search.shortest_path import find_plan
from tests.support.fake_backend import FakeBackend, Graph

OFFLOADED = ("Relu", "Add", "Concat")
ALL_KINDS = ((OpPatternKind.OUT_ELEMWISE_FUSABLE, OpPatternKind.OUT_ELEMWISE_FUSABLE),)


def tvm_rule(depth):
    combiners = (AllSimple(FUSE_OPS_KINDS), TupleArg(), TupleProj())
    config = SubGraphConfig(max_exits=1, max_depth=depth, allow_escaping=False)
    rule = OnlyValid(Combine(OpCallByKind(), combiners, max_depth=depth), config)
    return Primitive(rule, codegen=False)


def byoc_rule(depth):
    table = Union(tuple(Composite(name, DFPattern(name, op(name))) for name in OFFLOADED))
    config = SubGraphConfig(max_exits=1, max_depth=depth, allow_escaping=False)
    return Primitive(OnlyValid(Combine(table, (AllSimple(ALL_KINDS),), max_depth=depth), config))


@dataclass(frozen=True)
class Outcome:
    """Chosen groups, as (backend, node names), without the host's, and the cost."""

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


class MockMeasurer:
    """Measures with upstream's mock cost."""

    def __init__(self, bases):
        self.bases = bases

    def measure(self, batch, on_cost=None):
        return [
            Cost(self.bases[work.backend] * sum(0.9**k for k in range(work.nodes.bit_count())))
            for work in batch
        ]


@dataclass
class OffloadingBackend(FakeBackend):
    labels: tuple[str, ...] = OFFLOADED

    def unsupported(self, function, node):
        operator = function.graph.nodes[node].op
        return None if operator in OFFLOADED else f"no {operator}"


def partition(graph, bases, depths):
    """Partition as a compile does: candidates, search, and adjacent regions joined and measured."""
    backends = [
        FakeBackend("tvm", BackendStyle.NATIVE, own_rule=tvm_rule(depths[0])),
        OffloadingBackend("byoc", BackendStyle.LIBRARY, own_rule=byoc_rule(depths[1])),
    ]
    candidates = find_candidates(Graph(graph), backends)
    work = {
        c.key: MeasurementRequest("main", c.inside, c.backend, c.variant, label=c.implementation)
        for c in candidates
        if not c.is_host
    }
    options = [Option(c.inside, HOST if c.is_host else c.key, c.backend) for c in candidates]
    enumerated = EnumeratedFunction(
        None, tuple(candidates), Problem(graph, options), work, key_of=lambda c: c.key
    )
    measurer = MockMeasurer(bases)
    costs = dict(zip(work, measurer.measure(work.values()), strict=True))
    limits = SearchLimits(plans=1, budget_s=60.0, clock=lambda: 0.0)
    plan = search_function(enumerated, measurer, costs, limits).lazy.plan
    kernels = [option for option in plan.options if option.backend != HOST]
    names = [node.name for node in graph.nodes]
    return Outcome(
        [
            (option.backend, tuple(names[index] for index in indices(option.nodes)))
            for option in sorted(kernels, key=lambda option: first(option.nodes))
        ],
        plan.predicted_s,
    )

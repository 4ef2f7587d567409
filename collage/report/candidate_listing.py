"""The candidates of one function for the report: regions with alternatives, refusals, regrets.

A function has thousands of candidates. The listing keeps the chosen ones, the best few of every node and
backend, and counts the remainder.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from collage.cost import Cost
from collage.frontend import Function
from collage.frontend.region import region_bytes_and_flops
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import indices
from collage.graph.quantisation import computes_int8
from collage.measure.peaks import Peaks
from collage.report.data import (
    Alternative,
    CandidateState,
    InvalidCandidate,
    NodeRest,
    RegionReport,
    UnmeasuredCandidate,
)
from collage.report.formatting import finite_or_none
from collage.report.precision import FunctionResult
from collage.rules.rule import HOST
from collage.search.explain import explain
from collage.search.problem import UNKNOWN, Option

MAX_ALTERNATIVES = 25
"""Maximum number of overlapping candidates per region, in order of regret."""
MAX_BY_NODE = {
    CandidateState.VALID: 12,
    CandidateState.INVALID: 3,
    CandidateState.UNMEASURED: 3,
}
"""Maximum number of candidates per node, backend and state; the remainder is only counted."""
MAX_LISTED = 400
"""Maximum number of invalid, and of unmeasured, candidates per function, in order of size."""


def region_precision(function: Function, option: Option) -> str:
    quantised = option.backend != HOST and computes_int8(function.graph, option.nodes)
    return "int8" if quantised else option.precision


def operators_of(graph: DataflowGraph, option: Option) -> tuple[str, ...]:
    return tuple(graph.nodes[index].op for index in indices(option.nodes))


def region_label(ops: Sequence[str]) -> str:
    return "+".join(ops) if len(ops) <= 6 else f"{ops[0]}..{ops[-1]} ({len(ops)} nodes)"


class CandidateListing:
    """All candidates of one function with costs and regrets."""

    def __init__(self, result: FunctionResult, peaks: Peaks) -> None:
        search = result.search
        self.peaks = peaks
        self.function = search.enumerated.function
        self.costs = search.costs
        self.alone = search.lazy.costs
        self.graph = search.enumerated.function.graph
        self.variants = {key: work.implementation for key, work in search.enumerated.work.items()}
        self.chosen = set(result.chosen.plan.options)
        problem = search.enumerated.problem
        self.options = [option for option in problem.ordered if option.backend != HOST]
        explanation = explain(problem, search.costs)
        self.regrets = {regret.option: regret.regret_s for regret in explanation.regrets}
        self.gap_s = search.lazy.gap_s

    def region(self, option: Option, measured_s: float | None) -> RegionReport:
        cost = self.costs[option.key]
        alternatives = [
            candidate
            for candidate in self.options
            if candidate.nodes & option.nodes and not self._cost(candidate).is_unknown
        ]
        alternatives.sort(
            key=lambda o: (self.regrets.get(o, math.inf), -o.size, o.backend, o.nodes)
        )
        moved, flops = region_bytes_and_flops(self.function, option.nodes)
        return RegionReport(
            nodes=tuple(indices(option.nodes)),
            ops=operators_of(self.graph, option),
            backend=option.backend,
            variant=self.variants.get(option.key, ""),
            precision=region_precision(self.function, option),
            error=cost.error,
            label=region_label(operators_of(self.graph, option)),
            alone_s=self.alone[option.key].seconds,
            predicted_s=cost.seconds,
            low_s=finite_or_none(cost.low),
            high_s=finite_or_none(cost.high),
            measured_s=measured_s,
            bound_s=None if option.reduced else self.peaks.bound_s(moved, flops),
            limit=self.peaks.limit(moved, flops) if (moved or flops) and not option.reduced else "",
            moved_bytes=moved,
            flops=flops,
            alternatives=tuple(
                self._alternative(candidate) for candidate in alternatives[:MAX_ALTERNATIVES]
            ),
        )

    def invalid(self) -> Iterator[InvalidCandidate]:
        invalid = [option for option in self.options if self._cost(option).is_invalid]
        for option in sorted(invalid, key=lambda o: (o.size, o.backend, o.nodes))[:MAX_LISTED]:
            yield InvalidCandidate(
                backend=option.backend,
                variant=self.variants.get(option.key, ""),
                nodes=tuple(indices(option.nodes)),
                ops=operators_of(self.graph, option),
                reason=self._cost(option).reason,
            )

    def by_node(self) -> tuple[tuple[Alternative, ...], tuple[NodeRest, ...]]:
        """Return the best candidates of every node, backend and state, and the counts of unlisted ones."""
        counts: Counter[tuple[int, str, CandidateState]] = Counter()
        listed: Counter[tuple[int, str, CandidateState]] = Counter()
        best: list[Option] = []
        for option in sorted(self.options, key=self._rank):
            state = self._state(option)
            keys = [(node, option.backend, state) for node in indices(option.nodes)]
            if option in self.chosen or any(counts[key] < MAX_BY_NODE[state] for key in keys):
                best.append(option)
                listed.update(keys)
            counts.update(keys)
        unlisted = tuple(
            NodeRest(node=node, backend=backend, state=state, count=count - listed[key])
            for key, count in sorted(counts.items())
            for node, backend, state in (key,)
            if count > listed[key]
        )
        return tuple(self._alternative(option) for option in best), unlisted

    def _rank(self, option: Option) -> tuple[float, int, str, int]:
        return self.regrets.get(option, math.inf), option.size, option.backend, option.nodes

    def unmeasured(self) -> Iterator[UnmeasuredCandidate]:
        unmeasured = [option for option in self.options if self._cost(option).is_unknown]
        for option in sorted(unmeasured, key=lambda o: (o.size, o.backend, o.nodes))[:MAX_LISTED]:
            moved, flops = region_bytes_and_flops(self.function, option.nodes)
            yield UnmeasuredCandidate(
                backend=option.backend,
                variant=self.variants.get(option.key, ""),
                nodes=tuple(indices(option.nodes)),
                bound_s=self.peaks.bound_s(moved, flops),
                reason=self._unmeasured_reason(),
            )

    def _unmeasured_reason(self) -> str:
        if not self.gap_s:
            return "no plan with it was estimated to be faster than the measured one"
        saving = f"{self.gap_s * 1e6:.0f} us"
        return f"the time budget ended; plans with such candidates could save up to {saving}"

    def _state(self, option: Option) -> CandidateState:
        cost = self._cost(option)
        if cost.is_valid:
            return CandidateState.VALID
        return CandidateState.UNMEASURED if cost.is_unknown else CandidateState.INVALID

    def _cost(self, option: Option) -> Cost:
        return self.costs.get(option.key, UNKNOWN)

    def _alternative(self, option: Option) -> Alternative:
        cost = self._cost(option)
        state = self._state(option)
        reason = self._unmeasured_reason() if state is CandidateState.UNMEASURED else cost.reason
        return Alternative(
            backend=option.backend,
            variant=self.variants.get(option.key, ""),
            nodes=tuple(indices(option.nodes)),
            state=state,
            cost_s=finite_or_none(cost.seconds),
            low_s=finite_or_none(cost.low),
            high_s=finite_or_none(cost.high),
            regret_s=finite_or_none(self.regrets.get(option, math.inf)),
            reason=reason,
            chosen=option in self.chosen,
        )

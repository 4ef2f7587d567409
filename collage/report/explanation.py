"""Explanations of a stored plan, without compiling.

A bundle's `report.json` holds the regions of the plan. For every node it holds the best candidates of each
backend with exact regrets, refusals and unmeasured candidates with reasons. This module derives the
overview of a plan, the explanation of one node, and the difference of two plans. Its models are the
documents of `--json`.
"""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from collage.errors import OptionError
from collage.report.data import (
    Alternative,
    CandidateState,
    FunctionReport,
    GraphNode,
    MeasuredPlan,
    NodeRest,
    PeakRates,
    RegionReport,
    ReportData,
)
from collage.report.summary import Optimality


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeExplanation(_Frozen):
    """Everything about one node.

    Attributes:
        function: name of the function with the node.
        node: the node.
        region: region of the plan with the node.
        region_number: position of the region in the plan.
        ranked: measured candidates with the node, in order of regret.
        refused: invalid candidates with the node.
        unmeasured: candidates with the node but without a cost.
        rest: counts of unlisted candidates with the node.
        absent: backends without a candidate for the node.
    """

    function: str
    node: GraphNode
    region: RegionReport
    region_number: int
    ranked: tuple[Alternative, ...]
    refused: tuple[Alternative, ...]
    unmeasured: tuple[Alternative, ...]
    rest: tuple[NodeRest, ...]
    absent: tuple[str, ...]


class Totals(_Frozen):
    """Sums over one function's plan, in seconds.

    `kernels_s` is the sum of in-context kernel times, `latency_s` the latency of one complete call.
    """

    function: str
    regions: int
    nodes: int
    predicted_s: float | None
    kernels_s: float | None
    bound_s: float
    latency_s: float | None


class Overview(_Frozen):
    """The regions of a plan, in order of execution, with totals per function."""

    model: str
    totals: tuple[Totals, ...]
    regions: tuple[tuple[str, RegionReport], ...]
    peaks: PeakRates | None
    optimality: dict[str, Optimality] = Field(default_factory=dict)


class RegionChange(_Frozen):
    """A set of nodes with different regions in two plans, and those regions."""

    function: str
    nodes: tuple[int, ...]
    first: tuple[RegionReport, ...]
    second: tuple[RegionReport, ...]


class Difference(_Frozen):
    """The differences between two plans; `same` counts their common regions."""

    models: tuple[str, str]
    first: tuple[Totals, ...]
    second: tuple[Totals, ...]
    same: int
    changes: tuple[RegionChange, ...]


def overview(data: ReportData) -> Overview:
    """Describe the plan of a report."""
    return Overview(
        model=data.model,
        totals=tuple(_totals(function) for function in data.functions),
        regions=tuple((function.name, region) for function in data.functions
                      for region in function.regions),
        peaks=data.peaks,
        optimality={
            function.function: function.optimality
            for function in data.summary.functions
            if function.optimality
        },
    )  # fmt: skip


def explain_node(data: ReportData, name: str, function: str | None = None) -> NodeExplanation:
    """Explain one node.

    Args:
        data: report of a bundle.
        name: name of the node, or its number.
        function: name of the node's function, or of an entry; None: the first function with such a node.

    Raises:
        OptionError: there is no such function or node, or several have the name.
    """
    functions = [
        report for report in data.functions if function in (None, report.name, report.entry)
    ]
    if not functions:
        names = ", ".join(report.name for report in data.functions)
        raise OptionError(f"the model has no function {function!r}; its functions are {names}")
    for report in functions:
        if node := _find(report, name):
            return _explain(data, report, node)
    node_names = [node.name for report in functions for node in report.nodes]
    near = [
        node_name for node_name in node_names if node_name and name.lower() in node_name.lower()
    ][:5]
    hint = f"; near: {', '.join(near)}" if near else f"; numbers go from 0 to {len(node_names) - 1}"
    raise OptionError(f"--node {name}: the model has no such node{hint}")


def _find(function: FunctionReport, name: str) -> GraphNode | None:
    named = [node for node in function.nodes if node.name == name]
    if len(named) > 1:
        numbers = ", ".join(str(node.index) for node in named)
        raise OptionError(f"--node {name}: nodes {numbers} have that name; give a number")
    if not named and name.isdecimal():
        named = [node for node in function.nodes if node.index == int(name)]
    return named[0] if named else None


def _explain(data: ReportData, function: FunctionReport, node: GraphNode) -> NodeExplanation:
    numbers = (n for n, region in enumerate(function.regions) if node.index in region.nodes)
    number = next(numbers, None)
    if number is None:
        raise OptionError(f"--node {node.name}: no region of the plan has this node")
    node_candidates = [
        candidate for candidate in function.considered if node.index in candidate.nodes
    ]
    unlisted = tuple(count for count in function.rest if count.node == node.index)
    offered = {entry.backend for entry in node_candidates} | {entry.backend for entry in unlisted}
    return NodeExplanation(
        function=function.name,
        node=node,
        region=function.regions[number],
        region_number=number,
        ranked=_in_state(node_candidates, CandidateState.VALID),
        refused=_in_state(node_candidates, CandidateState.INVALID),
        unmeasured=_in_state(node_candidates, CandidateState.UNMEASURED),
        rest=unlisted,
        absent=tuple(name for name in data.summary.backends if name not in offered),
    )


def _in_state(candidates: Iterable[Alternative], state: CandidateState) -> tuple[Alternative, ...]:
    matching = [candidate for candidate in candidates if candidate.state is state]
    return tuple(sorted(matching, key=_rank))


def _rank(candidate: Alternative) -> tuple[bool, bool, float, int, str, tuple[int, ...]]:
    is_unusable = candidate.regret_s is None
    return (
        not candidate.chosen,
        is_unusable,
        candidate.regret_s or 0.0,
        len(candidate.nodes),
        candidate.backend,
        candidate.nodes,
    )


def diff(first: ReportData, second: ReportData) -> Difference:
    """Compare two plans of one model, function by function.

    Raises:
        OptionError: their models differ in a function or its nodes.
    """
    second_functions = {function.name: function for function in second.functions}
    same, changes = 0, []
    for first_function in first.functions:
        second_function = second_functions.get(first_function.name)
        if second_function is None or [node.op for node in first_function.nodes] != [
            node.op for node in second_function.nodes
        ]:
            raise OptionError(
                f"function {first_function.name} has different nodes in the two bundles; compare plans "
                "of one model"
            )
        count, function_changes = _changes(first_function, second_function)
        same += count
        changes += function_changes
    if len(second_functions) != len(first.functions):
        raise OptionError("the bundles have different functions; compile both for the same shapes")
    return Difference(
        models=(first.model, second.model),
        first=overview(first).totals,
        second=overview(second).totals,
        same=same,
        changes=tuple(changes),
    )


def _identity(region: RegionReport) -> tuple[tuple[int, ...], str, str]:
    return region.nodes, region.backend, region.variant


def _changes(first: FunctionReport, second: FunctionReport) -> tuple[int, list[RegionChange]]:
    """Group different regions into the smallest sets of nodes covered by both plans."""
    shared = {_identity(region) for region in first.regions} & {
        _identity(region) for region in second.regions
    }
    sides = [
        [region for region in regions if _identity(region) not in shared]
        for regions in (first.regions, second.regions)
    ]
    groups: list[set[int]] = []
    for region in (*sides[0], *sides[1]):
        touching = [group for group in groups if not group.isdisjoint(region.nodes)]
        merged = set(region.nodes).union(*touching)
        groups = [group for group in groups if group not in touching] + [merged]
    changes = [
        RegionChange(
            function=first.name,
            nodes=tuple(sorted(group)),
            first=tuple(region for region in sides[0] if not group.isdisjoint(region.nodes)),
            second=tuple(region for region in sides[1] if not group.isdisjoint(region.nodes)),
        )
        for group in sorted(groups, key=min)
    ]
    return len(shared), changes


def _totals(function: FunctionReport) -> Totals:
    chosen = next((plan for plan in function.plans if plan.chosen), MeasuredPlan(name=""))
    return Totals(
        function=function.name,
        regions=len(function.regions),
        nodes=len(function.nodes),
        predicted_s=chosen.predicted_s,
        kernels_s=sum_s(region.measured_s for region in function.regions),
        bound_s=sum(region.bound_s or 0.0 for region in function.regions),
        latency_s=chosen.measured_s,
    )


def sum_s(seconds: Iterable[float | None]) -> float | None:
    """Sum the known values; None if all are unknown."""
    known_s: Sequence[float] = [value_s for value_s in seconds if value_s is not None]
    return sum(known_s) if known_s else None

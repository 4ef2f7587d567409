"""Why this plan, and not another: answers from what a bundle keeps, without compiling anything.

A bundle's `report.json` holds the plan's regions and, for every node, the best few candidates of each
backend with exact regrets, refusals with their reasons, what was never measured and why. From it come
the overview of a plan, everything about one node, and the difference of two plans. The models here
are the documents of `--json`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from collage.errors import BundleError, InputError, OptionError
from collage.report.data import (
    REPORT_SCHEMA_VERSION,
    Alternative,
    CandidateState,
    FunctionReport,
    GraphNode,
    MeasuredPlan,
    NodeRest,
    PeakRates,
    RegionReport,
    ReportData,
    Summary,
)
from collage.runtime.bundle_folder import BundleFolder

REPORT, SUMMARY = "report.json", "summary.json"
MAX_REPORT_BYTES = 1 << 28
Document = TypeVar("Document", bound=BaseModel)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeExplanation(_Frozen):
    """Everything about one node.

    `ranked` are the measured candidates with the node, least regret first; `absent` the backends that
    offer no candidate with it.
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
    """Sums of one function's plan; `kernels_s` are the kernels alone, `latency_s` one whole call."""

    function: str
    regions: int
    nodes: int
    predicted_s: float | None
    kernels_s: float | None
    bound_s: float
    latency_s: float | None


class Overview(_Frozen):
    """What a plan is made of; regions in order of execution."""

    model: str
    totals: tuple[Totals, ...]
    regions: tuple[tuple[str, RegionReport], ...]
    peaks: PeakRates | None


class RegionChange(_Frozen):
    """Nodes that two plans cover differently, with the regions of each that hold them."""

    function: str
    nodes: tuple[int, ...]
    first: tuple[RegionReport, ...]
    second: tuple[RegionReport, ...]


class Difference(_Frozen):
    """What differs from plan `first` to plan `second`; `same` counts the regions that both have."""

    models: tuple[str, str]
    first: tuple[Totals, ...]
    second: tuple[Totals, ...]
    same: int
    changes: tuple[RegionChange, ...]


def read_report(path: Path) -> ReportData:
    """Read the facts of a bundle, or of its `report.json`.

    Raises:
        InputError: there is no report at the path.
        BundleError: the report is damaged, or of another version of Collage.
    """
    file = path if path.is_file() else path / REPORT
    data = _document(file, ReportData)
    if data.schema_version != REPORT_SCHEMA_VERSION:
        raise BundleError(
            f"{file} has schema {data.schema_version}, this version reads "
            f"{REPORT_SCHEMA_VERSION}; compile again"
        )
    for function in data.functions:
        _check_numbers(file, function)
    return data


def read_summary(bundle: Path) -> Summary:
    """Read the summary of a bundle. Errors as of `read_report`."""
    return _document(bundle / SUMMARY, Summary)


def _document(file: Path, model: type[Document]) -> Document:
    """Read a file of a bundle; nobody has to have signed it."""
    try:
        data = BundleFolder(file.parent).read(file.name, MAX_REPORT_BYTES)
        return model.model_validate_json(data)
    except (BundleError, FileNotFoundError):
        raise InputError(
            f"{file.parent} holds no {file.name}; is it a bundle of this version?"
        ) from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BundleError(
            f"{file} is damaged, or of another version ({_first_fault(error)}); compile again"
        ) from error


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"[:300]


def _check_numbers(file: Path, function: FunctionReport) -> None:
    """Refuse a report whose regions or neighbours are not nodes of the function."""
    known = {node.index for node in function.nodes}
    named = {
        "nodes": [number for node in function.nodes for number in (*node.inputs, *node.outputs)],
        "regions": [number for one in function.regions for number in one.nodes],
    }
    wrong = next((field for field, numbers in named.items() if not known.issuperset(numbers)), "")
    if len(known) != len(function.nodes):
        wrong = "nodes"
    if not all(one.nodes for one in function.regions):
        wrong = "regions"
    if wrong:
        raise BundleError(
            f"{file} is damaged: the {wrong} of function {function.name} have numbers of no node, of "
            "several, or none; compile again"
        )


def overview(data: ReportData) -> Overview:
    """Describe the plan of a report."""
    return Overview(
        model=data.model,
        totals=tuple(_totals(function) for function in data.functions),
        regions=tuple((function.name, one) for function in data.functions
                      for one in function.regions),
        peaks=data.peaks,
    )  # fmt: skip


def explain_node(data: ReportData, name: str, function: str | None = None) -> NodeExplanation:
    """Gather what is known about one node.

    Args:
        data: from `read_report`.
        name: the node's name, or its number.
        function: where it is; the first function with such a node by default.

    Raises:
        OptionError: there is no such function or node, or several have the name.
    """
    functions = [one for one in data.functions if function in (None, one.name)]
    if not functions:
        there = ", ".join(one.name for one in data.functions)
        raise OptionError(f"the model has no function {function!r}; there are {there}")
    for one in functions:
        if node := _find(one, name):
            return _explain(data, one, node)
    known = [node.name for one in functions for node in one.nodes]
    near = [other for other in known if other and name.lower() in other.lower()][:5]
    hint = f"; near: {', '.join(near)}" if near else f"; numbers go from 0 to {len(known) - 1}"
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
    holding = (n for n, one in enumerate(function.regions) if node.index in one.nodes)
    number = next(holding, None)
    if number is None:
        raise OptionError(f"--node {node.name}: no region of the plan has this node")
    having = [one for one in function.considered if node.index in one.nodes]
    rest = tuple(one for one in function.rest if one.node == node.index)
    offered = {one.backend for one in having} | {one.backend for one in rest}
    return NodeExplanation(
        function=function.name,
        node=node,
        region=function.regions[number],
        region_number=number,
        ranked=_of(having, CandidateState.VALID),
        refused=_of(having, CandidateState.INVALID),
        unmeasured=_of(having, CandidateState.UNMEASURED),
        rest=rest,
        absent=tuple(name for name in data.summary.backends if name not in offered),
    )


def _of(candidates: Iterable[Alternative], state: CandidateState) -> tuple[Alternative, ...]:
    found = [one for one in candidates if one.state is state]
    return tuple(sorted(found, key=_rank))


def _rank(one: Alternative) -> tuple[bool, bool, float, int, str, tuple[int, ...]]:
    unusable = one.regret_s is None
    return not one.chosen, unusable, one.regret_s or 0.0, len(one.nodes), one.backend, one.nodes


def diff(first: ReportData, second: ReportData) -> Difference:
    """Compare two plans of one model, function by function.

    Raises:
        OptionError: their models differ in a function or its nodes.
    """
    others = {function.name: function for function in second.functions}
    same, changes = 0, []
    for one in first.functions:
        other = others.get(one.name)
        if other is None or [node.op for node in one.nodes] != [node.op for node in other.nodes]:
            raise OptionError(
                f"function {one.name} has other nodes in the two bundles; compare plans of one model"
            )
        count, found = _changes(one, other)
        same += count
        changes += found
    if len(others) != len(first.functions):
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
    """Group the regions that differ into the smallest sets of nodes that both plans cover."""
    shared = {_identity(one) for one in first.regions} & {_identity(one) for one in second.regions}
    sides = [
        [one for one in regions if _identity(one) not in shared]
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
            first=tuple(one for one in sides[0] if not group.isdisjoint(one.nodes)),
            second=tuple(one for one in sides[1] if not group.isdisjoint(one.nodes)),
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
        kernels_s=sum_s(one.measured_s for one in function.regions),
        bound_s=sum(one.bound_s or 0.0 for one in function.regions),
        latency_s=chosen.measured_s,
    )


def sum_s(seconds: Iterable[float | None]) -> float | None:
    """Add up what is known; None where nothing is."""
    known: Sequence[float] = [one for one in seconds if one is not None]
    return sum(known) if known else None

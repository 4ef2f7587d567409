"""Data for the page's script: both views of a function's graph, and the details of its regions.

Positions are computed here, so that the script stays small and the page is the same every time.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypedDict

from collage.report.data import Alternative, CandidateState, FunctionReport, GraphNode, RegionReport
from collage.report.formatting import duration, node_ranges, op_counts, precision_text
from collage.report.layout import BOX_HEIGHT, BOX_WIDTH, lay_out

Mark = tuple[str, str]
"""Colour class and letter of a backend: the letter serves readers without colour vision."""

_KNOWN: Mapping[str, Mark] = {
    "tvm": ("0", "T"), "onednn": ("1", "D"), "onnxruntime": ("2", "O"), "openvino": ("3", "V"),
    "cublas": ("4", "B"), "cudnn": ("5", "N"), "cutlass": ("6", "C"), "tensorrt": ("7", "R"),
    "host": ("h", "H"),
}  # fmt: skip
_UNCOVERED: Mark = ("h", "?")


class Box(TypedDict):
    x: float
    y: float
    region: int
    mark: Mark
    backend: str
    title: str
    sub: str
    hint: str


class GraphDrawing(TypedDict):
    width: float
    height: float
    box: tuple[float, float]
    boxes: list[Box]
    edges: list[tuple[int, int, tuple[tuple[float, float], ...]]]


class Choice(TypedDict):
    mark: Mark
    backend: str
    nodes: str
    cost: str
    interval: str
    regret: str
    reason: str
    chosen: bool


class Details(TypedDict):
    mark: Mark
    backend: str
    title: str
    facts: list[tuple[str, str]]
    alternatives: list[Choice]


class Drawing(TypedDict):
    regions: GraphDrawing
    nodes: GraphDrawing
    details: list[Details]


def backend_marks(backends: Iterable[str]) -> dict[str, Mark]:
    """Assign a unique colour and letter to every backend; known backends have fixed ones."""
    names = sorted(set(backends))
    marks = {name: _KNOWN[name] for name in names if name in _KNOWN}
    for name in names:
        if name in marks:
            continue
        letters = {letter for _, letter in marks.values()}
        colours = {colour for colour, _ in marks.values()}
        preferred = [char for char in name.upper() + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if char.isalnum()]
        letter = next((char for char in preferred if char not in letters), "*")
        colour = next((c for c in map(str, reversed(range(8))) if c not in colours), "7")
        marks[name] = (colour, letter)
    return marks


def draw_function(function: FunctionReport, marks: Mapping[str, Mark]) -> Drawing:
    """Lay out one function."""
    owner = {
        index: number for number, region in enumerate(function.regions) for index in region.nodes
    }
    return {
        "regions": _region_view(function, owner, marks),
        "nodes": _node_view(function, owner, marks),
        "details": [_details(region, marks) for region in function.regions],
    }


def _node_view(
    function: FunctionReport, owner: Mapping[int, int], marks: Mapping[str, Mark]
) -> GraphDrawing:
    position = {node.index: place for place, node in enumerate(function.nodes)}
    sources = [
        [position[index] for index in node.inputs if position.get(index, place) < place]
        for place, node in enumerate(function.nodes)
    ]
    boxes = [_node_box(node, function.regions, owner.get(node.index, -1), marks)
             for node in function.nodes]  # fmt: skip
    return _view(boxes, sources)


def _node_box(
    node: GraphNode, regions: Sequence[RegionReport], region: int, marks: Mapping[str, Mark]
) -> Box:
    backend = regions[region].backend if region >= 0 else "not covered"
    types = ", ".join(node.types)
    return {
        "x": 0.0, "y": 0.0, "region": region, "mark": marks.get(backend, _UNCOVERED),
        "backend": backend, "title": f"{node.index} {node.op}", "sub": types or node.name,
        "hint": f"{node.index} {node.op} {node.name} -> {types}",
    }  # fmt: skip


def _region_view(
    function: FunctionReport, owner: Mapping[int, int], marks: Mapping[str, Mark]
) -> GraphDrawing:
    before: dict[int, set[int]] = {number: set() for number in range(len(function.regions))}
    for node in function.nodes:
        target = owner.get(node.index)
        sources = {owner[index] for index in node.inputs if index in owner}
        if target is not None:
            before[target] |= sources - {target}
    order = _topological(before)
    position = {number: place for place, number in enumerate(order)}
    boxes = [_region_box(function.regions[number], number, marks) for number in order]
    edges = [
        sorted(position[source] for source in before[number] if position[source] < place)
        for place, number in enumerate(order)
    ]
    return _view(boxes, edges)


def _topological(before: Mapping[int, set[int]]) -> list[int]:
    """Sort regions topologically; ties in order of their numbers."""
    sorter = TopologicalSorter({number: sorted(before[number]) for number in sorted(before)})
    try:
        sorter.prepare()
    except CycleError:
        return sorted(before)
    order: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order.extend(ready)
        sorter.done(*ready)
    return order


def _region_box(region: RegionReport, number: int, marks: Mapping[str, Mark]) -> Box:
    size = f"{len(region.nodes)} node" + ("s" if len(region.nodes) != 1 else "")
    return {
        "x": 0.0, "y": 0.0, "region": number, "mark": marks[region.backend],
        "backend": region.backend, "title": op_counts(region.ops, 3) or region.label,
        "sub": f"{duration(region.predicted_s)}, {size}",
        "hint": f"nodes {node_ranges(region.nodes)}, {duration(region.predicted_s)}",
    }  # fmt: skip


def _view(boxes: list[Box], sources: Sequence[Sequence[int]]) -> GraphDrawing:
    layout = lay_out(sources)
    for box, (x, y) in zip(boxes, layout.centres, strict=True):
        box["x"], box["y"] = x, y
    return {
        "width": layout.width,
        "height": layout.height,
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "boxes": boxes,
        "edges": [(source, target, bends) for (source, target), bends in layout.bends.items()],
    }


def _details(region: RegionReport, marks: Mapping[str, Mark]) -> Details:
    facts = [
        ("nodes", node_ranges(region.nodes)),
        ("operators", op_counts(region.ops, 40)),
        ("label", ", ".join(filter(None, (region.label, region.variant)))),
        ("precision", precision_text(region.precision, region.error)),
        ("predicted", duration(region.predicted_s)),
        ("95 % interval", interval(region.low_s, region.high_s)),
        ("in the executable", duration(region.measured_s) if region.measured_s is not None else ""),
        ("lower bound", duration(region.bound_s) if region.bound_s is not None else ""),
    ]
    ordered = sorted(region.alternatives, key=_best_first)
    return {
        "mark": marks[region.backend],
        "backend": region.backend,
        "title": op_counts(region.ops, 3) or region.label,
        "facts": [fact for fact in facts if fact[1]],
        "alternatives": [_choice(candidate, marks) for candidate in ordered],
    }


def _best_first(
    candidate: Alternative,
) -> tuple[bool, int, float, float, str, tuple[int, ...], str]:
    state = list(CandidateState).index(candidate.state)
    regret = candidate.regret_s if candidate.regret_s is not None else float("inf")
    return (not candidate.chosen, (0, 2, 1)[state], regret, candidate.cost_s or 0.0, candidate.backend,
            candidate.nodes, candidate.variant)  # fmt: skip


def _choice(candidate: Alternative, marks: Mapping[str, Mark]) -> Choice:
    valid = candidate.state is CandidateState.VALID
    regret = "chosen" if candidate.chosen else f"+{duration(candidate.regret_s)}"
    return {
        "mark": marks[candidate.backend],
        "backend": f"{candidate.backend} {candidate.variant}".rstrip(),
        "nodes": node_ranges(candidate.nodes),
        "cost": duration(candidate.cost_s) if valid else candidate.state.value,
        "interval": interval(candidate.low_s, candidate.high_s) if valid else "",
        "regret": regret if candidate.chosen or candidate.regret_s is not None else duration(None),
        "reason": candidate.reason,
        "chosen": candidate.chosen,
    }


def interval(low_s: float | None, high_s: float | None) -> str:
    """Format an interval as `1.00 ms to 1.10 ms`; "" without one."""
    if low_s is None or high_s is None:
        return ""
    return f"{duration(low_s)} to {duration(high_s)}"

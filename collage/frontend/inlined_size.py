"""The number of nodes of a model after inlining, counted without inlining.

A function with two calls doubles the size at every level, so a kilobyte can become a million nodes. Each
function is counted once, after its callees; a recursive function is an error.
Complexity: linear in the calls.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from collage.errors import ModelError

FunctionId = tuple[str, str, str]
"""Domain, name and overload."""
Calls = Counter[FunctionId]
"""Number of calls of each operator or function, bodies included."""

MAX_CALL_DEPTH = 64


def inlined_nodes(calls: Calls, functions: Mapping[FunctionId, Calls]) -> int:
    """Count the nodes of a graph with these calls.

    Raises:
        ModelError: a function calls itself, or functions are nested too deep.
    """
    sizes: dict[FunctionId, _Size] = {}
    for name in functions:
        _measure(name, functions, sizes)
    return _nodes(calls, sizes)


class _Size(NamedTuple):
    nodes: int
    depth: int


def _measure(
    first: FunctionId, functions: Mapping[FunctionId, Calls], sizes: dict[FunctionId, _Size]
) -> None:
    """Add the sizes of a function and of its direct and indirect callees."""
    path: dict[FunctionId, None] = {}
    pending = [first]
    while pending:
        name = pending[-1]
        if name in sizes:
            pending.pop()
            continue
        callees = [callee for callee in functions[name] if callee in functions]
        unknown = [callee for callee in callees if callee not in sizes]
        if not unknown:
            depth = 1 + max((sizes[callee].depth for callee in callees), default=0)
            if depth > MAX_CALL_DEPTH:
                raise ModelError(f"its functions call each other more than {MAX_CALL_DEPTH} deep")
            sizes[name] = _Size(_nodes(functions[name], sizes), depth)
            path.pop(name, None)
            pending.pop()
            continue
        path[name] = None
        if looping := next((callee for callee in unknown if callee in path), None):
            raise ModelError(f"its function {looping[1]!r} calls itself, which has no end")
        pending.append(unknown[0])


def _nodes(calls: Calls, sizes: Mapping[FunctionId, _Size]) -> int:
    return sum(
        count * (sizes[callee].nodes if callee in sizes else 1) for callee, count in calls.items()
    )

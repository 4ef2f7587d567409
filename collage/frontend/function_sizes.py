"""How many nodes a model has once its functions are inlined, counted without inlining.

A function that calls two others twice doubles with every level, so a kilobyte can become a million
nodes. Each function is counted once, after those that it calls; one that reaches itself has no end.
Complexity: linear in the calls.
"""

from collections import Counter
from collections.abc import Mapping

from collage.errors import ModelError

FunctionId = tuple[str, str, str]
"""Domain, name and overload."""
Calls = Counter[FunctionId]
"""How often each operator or function is called, bodies included."""

MAX_CALL_DEPTH = 64


def inlined_nodes(calls: Calls, functions: Mapping[FunctionId, Calls]) -> int:
    """Count the nodes of a graph with these calls.

    Raises:
        ModelError: a function calls itself, or functions are nested too deep.
    """
    sizes: dict[FunctionId, int] = {}
    for name in functions:
        _measure(name, functions, sizes)
    return sum(count * sizes.get(name, 1) for name, count in calls.items())


def _measure(
    first: FunctionId, functions: Mapping[FunctionId, Calls], sizes: dict[FunctionId, int]
) -> None:
    """Add the sizes of a function and of all that it reaches."""
    path: dict[FunctionId, None] = {}
    pending = [first]
    while pending:
        name = pending[-1]
        if name in sizes:
            pending.pop()
            continue
        callees = [one for one in functions[name] if one in functions and one not in sizes]
        if not callees:
            sizes[name] = sum(n * sizes.get(one, 1) for one, n in functions[name].items())
            path.pop(name, None)
            pending.pop()
            continue
        path[name] = None
        if len(path) > MAX_CALL_DEPTH:
            raise ModelError(f"its functions call each other more than {MAX_CALL_DEPTH} deep")
        if looping := next((one for one in callees if one in path), None):
            raise ModelError(f"its function {looping[1]!r} calls itself, which has no end")
        pending.append(callees[0])

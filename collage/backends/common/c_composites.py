"""One C kernel of several composites: each is a function, called in the order of their data.

A combiner joins labelled matches into one region (`rules.composites`). Its kernel saves the calls between
them and keeps intermediate values in one allocation of the call; several threads may call the kernel.
"""

from collections.abc import Iterable, Mapping, Sequence

from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.region import region_values, region_weights
from collage.graph.index_set import IndexSet

ALIGNMENT = 64
"""Alignment of intermediate values, in bytes."""
SIGNATURE = (
    "int {name}(const void *const *inputs, const void *const *constants,\n"
    "                   void *const *outputs) {{\n"
)


def ordered_parts(function: Function, parts: Sequence[IndexSet], nodes: IndexSet) -> list[IndexSet]:
    """Return the parts of the region `nodes` in an executable order.

    Raises:
        BackendError: the parts do not make up the region, or need each other's results.
    """
    if sum(part.bit_count() for part in parts) != nodes.bit_count() or set_union(parts) != nodes:
        raise BackendError("the composites are not all of the region")
    available = set(region_values(function, nodes)[0])
    waiting, ordered = list(parts), []
    while waiting:
        ready = [part for part in waiting if available.issuperset(region_values(function, part)[0])]
        if not ready:
            raise BackendError("the composites need each other's results")
        ordered.append(ready[0])
        waiting.remove(ready[0])
        available.update(region_values(function, ready[0])[1])
    return ordered


def set_union(sets: Iterable[IndexSet]) -> IndexSet:
    """Return the union of node sets."""
    union = 0
    for nodes in sets:
        union |= nodes
    return union


def driver(function: Function, parts: Sequence[IndexSet], nodes: IndexSet) -> str:
    """Return the C function `collage_kernel` that calls `part0`, `part1`, ... in order."""
    places = _places(function, parts, nodes)
    sizes = [
        function.graph.types[name].size_bytes for name in _intermediates(places, function, parts)
    ]
    scratch_bytes = sum(map(_aligned, sizes)) or ALIGNMENT
    calls = "".join(
        f"  if (!status) status = part{number}({_call(function, part, places)});\n"
        for number, part in enumerate(parts)
    )
    return (
        f"{SIGNATURE.format(name='collage_kernel')}"
        f"  char *scratch = aligned_alloc({ALIGNMENT}, {scratch_bytes});\n"
        "  if (!scratch) return 1;\n"
        "  int status = 0;\n"
        f"{calls}"
        "  free(scratch);\n"
        "  return status;\n}\n"
    )


def _places(function: Function, parts: Sequence[IndexSet], nodes: IndexSet) -> dict[str, str]:
    """Return the C expression of each value of the region's parts."""
    inputs, outputs = region_values(function, nodes)
    places = {name: f"inputs[{number}]" for number, name in enumerate(inputs)}
    places |= {
        name: f"constants[{number}]" for number, name in enumerate(region_weights(function, nodes))
    }
    places |= {name: f"outputs[{number}]" for number, name in enumerate(outputs)}
    offset = 0
    for name in _intermediates(places, function, parts):
        places[name] = f"scratch + {offset}"
        offset += _aligned(function.graph.types[name].size_bytes)
    return places


def _intermediates(
    places: Mapping[str, str], function: Function, parts: Sequence[IndexSet]
) -> list[str]:
    """Return the results of parts that stay inside the region."""
    results = [name for part in parts for name in region_values(function, part)[1]]
    return [name for name in results if places.get(name, "scratch").startswith("scratch")]


def _call(function: Function, part: IndexSet, places: Mapping[str, str]) -> str:
    inputs, outputs = region_values(function, part)
    sides = (
        ("const void *const", inputs),
        ("const void *const", region_weights(function, part)),
        ("void *const", outputs),
    )
    return ", ".join(
        f"({kind}[]){{{', '.join(places[name] for name in names) or '0'}}}" for kind, names in sides
    )


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT

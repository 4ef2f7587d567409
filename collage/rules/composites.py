"""Composites: the parts of a region whose implementation a rule chooses (RFC 0.7 "CompositeFusionRule").

A rule `Composite(label, rule)` tags candidates. The label goes with the candidate into its identity, its cost
key and the request to build it; there the backend compiles the tagged nodes with the implementation of that
name. So two labels on one region are two candidates, and the cheaper one wins.

A candidate with one composite of all its nodes has that composite's label. Where a combiner joins several
composites, the label of the region lists each with the places of its nodes in the region: "0,1=dense 2=relu".
Places do not depend on where the region lies in its function, so equal regions have equal labels.
"""

import re
from dataclasses import dataclass

from collage.graph.index_set import IndexSet, index_set, indices
from collage.graph.sub_graph import SubGraph

COMPOSITE = "Composite"
"""Attribute of a nested function: the label of its implementation."""
LABEL = re.compile(r"[A-Za-z0-9_.+-]+")
"""A label of one composite."""


@dataclass(frozen=True)
class LabelledNodes:
    """Nodes of a region with the label of their implementation."""

    nodes: IndexSet
    label: str


def composites_of(sub_graph: SubGraph) -> list[LabelledNodes]:
    """Return the outermost composites nested in a sub-graph, by first node."""
    composites: list[LabelledNodes] = []
    for nested in sub_graph.nested:
        label = dict(nested.attrs).get(COMPOSITE)
        if label is None:
            composites += composites_of(nested.sub_graph)
        else:
            composites.append(LabelledNodes(nested.sub_graph.inside, label))
    return sorted(composites, key=lambda composite: composite.nodes & -composite.nodes)


def region_label(sub_graph: SubGraph) -> str:
    """Return the label of a region, "" without composites."""
    composites = composites_of(sub_graph)
    if [composite.nodes for composite in composites] == [sub_graph.inside]:
        return composites[0].label
    places = {node: place for place, node in enumerate(indices(sub_graph.inside))}
    return " ".join(
        f"{','.join(str(places[node]) for node in indices(composite.nodes))}={composite.label}"
        for composite in composites
    )


def read_region_label(label: str, nodes: IndexSet) -> list[LabelledNodes]:
    """Return the composites that `region_label` wrote for the region `nodes`.

    Raises:
        ValueError: the label is none of a region of this size.
    """
    if not label:
        return []
    if LABEL.fullmatch(label):
        return [LabelledNodes(nodes, label)]
    members = list(indices(nodes))
    composites = []
    for part in label.split(" "):
        places, _, name = part.partition("=")
        if not LABEL.fullmatch(name) or not re.fullmatch(r"\d+(,\d+)*", places):
            raise ValueError(f"{label!r} is no label of a region")
        numbers = [int(place) for place in places.split(",")]
        if max(numbers) >= len(members):
            raise ValueError(f"{label!r} is no label of a region of {len(members)} nodes")
        composites.append(LabelledNodes(index_set(members[place] for place in numbers), name))
    return composites

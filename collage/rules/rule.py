"""Rules: descriptions of candidates as plain data (RFC 0.7 "FusionRule").

Base rules find candidates in the graph; other rules wrap and combine the candidates of their sub-rules.
Candidates may overlap: the search chooses. Rules do not know backends; every candidate of a rule carries the
`PartitionSpec` of the call.
"""

import abc
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet
from collage.graph.sub_graph import SubGraph
from collage.rules.composites import region_label

HOST = "host"
"""Backend name of nodes without a kernel: the executable's own virtual machine runs them."""
PRIMITIVE, CODEGEN = "Primitive", "Codegen"
"""Attributes of a nested function that is one kernel: all kernels; those of an external code generator."""


@dataclass(frozen=True)
class PartitionSpec:
    """A backend's variant.

    Two targets of one toolchain are two backends, with two names (upstream defect D6).
    """

    backend: str
    variant: str = ""

    @property
    def is_host(self) -> bool:
        return self.backend == HOST


@dataclass(frozen=True)
class Candidate:
    """A sub-graph on a backend's variant, with the labels of its composites.

    Attributes:
        sub_graph: its nodes.
        spec: backend and variant.
        origin: names of its rules, outer first, for the report.
    """

    sub_graph: SubGraph
    spec: PartitionSpec
    origin: str = field(default="", compare=False)

    @property
    def inside(self) -> IndexSet:
        return self.sub_graph.inside

    @property
    def backend(self) -> str:
        return self.spec.backend

    @property
    def variant(self) -> str:
        return self.spec.variant

    @property
    def is_host(self) -> bool:
        return self.spec.is_host

    @cached_property
    def implementation(self) -> str:
        """Label that chooses the implementation, "" for the backend's own choice (`rules.composites`)."""
        return region_label(self.sub_graph)

    @property
    def is_joinable(self) -> bool:
        """Tell whether it is a kernel of an external code generator, joined with adjacent ones."""
        return any(CODEGEN in dict(nested.attrs) for nested in self.sub_graph.nested)

    @property
    def label(self) -> str:
        """Name for readers: the pattern's name, else the operators."""
        ops = self.sub_graph.ops
        short = "+".join(ops) if len(ops) <= 6 else f"{ops[0]}..{ops[-1]} ({len(ops)} nodes)"
        return self.sub_graph.label or short

    @property
    def key(self) -> tuple[object, ...]:
        """Identity: spec, nodes, and the labels of composites."""
        return (self.spec.backend, self.spec.variant, self.sub_graph.inside, self.implementation)

    @property
    def order(self) -> tuple[object, ...]:
        """Place in every list of candidates: first node, size, nodes, backend, variant, labels."""
        inside = self.sub_graph.inside
        return (inside & -inside, inside.bit_count(), inside, self.key)


@dataclass(frozen=True)
class Refusal:
    """A region of a rule without support by the backend, and the reason."""

    inside: IndexSet
    label: str
    reason: str


class PartitionRule(abc.ABC):
    """Lists candidates. Subclasses are frozen dataclasses, so that rules are comparable data."""

    @abc.abstractmethod
    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        """Return the candidates, each once, in a deterministic order."""

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        """Return the rejected regions with reasons; an empty list where a rule does not record them."""
        return []


def unique(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Drop later copies of equal candidates (upstream defect D15: copies removed each other)."""
    by_key: dict[tuple[object, ...], Candidate] = {}
    for candidate in candidates:
        by_key.setdefault(candidate.key, candidate)
    return list(by_key.values())

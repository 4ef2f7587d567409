"""Backends without a compiler, and functions with nothing but a graph, for tests that list candidates."""

from dataclasses import dataclass, field

from collage.backends.base import Availability, Backend, BackendStyle
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet


@dataclass(frozen=True)
class Graph:
    graph: DataflowGraph
    drawing: IndexSet = 0


@dataclass
class FakeBackend(Backend):
    name: str
    style: BackendStyle
    refused: frozenset[str] = frozenset()
    variants: tuple[str, ...] = ("",)
    own_rule: object = field(default=None)

    def availability(self):
        return Availability("")

    def unsupported(self, function, node):
        operator = function.graph.nodes[node].op
        return f"no {operator}" if operator in self.refused else None

    def compile(self, function, nodes, context, variant=""):
        raise NotImplementedError

    def rule(self, function):
        return self.own_rule

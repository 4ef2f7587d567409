"""Small dataflow graphs."""

from collage.graph.builder import GraphBuilder
from collage.graph.dataflow import DataflowGraph


def chain(*operators: str) -> DataflowGraph:
    """Return a graph in which each operator reads the one before; the first reads the input x."""
    graph = GraphBuilder()
    value = graph.input("x")
    for operator in operators:
        value = graph.add(operator, value)
    return graph.build()

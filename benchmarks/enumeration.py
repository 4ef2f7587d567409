"""Time of candidate enumeration: `python -m benchmarks.enumeration [nodes]`."""

import sys
import time
from dataclasses import dataclass

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, Kernel
from collage.graph.builder import GraphBuilder
from collage.graph.dataflow import DataflowGraph
from collage.rules import find_candidates


def residual_cnn(nodes: int) -> DataflowGraph:
    """Blocks of two convolutions with a residual; every fourth has a convolution in its shortcut."""
    graph = GraphBuilder((1, 64, 56, 56))
    x, block, count = graph.input("x"), 0, 0
    while count < nodes:
        y = graph.add("Relu", graph.add("Conv", x, graph.weight()))
        y = graph.add("Conv", y, graph.weight())
        shortcut = graph.add("Conv", x, graph.weight()) if block % 4 == 3 else x
        x = graph.add("Relu", graph.add("Add", y, shortcut))
        count += 6 if block % 4 == 3 else 5
        block += 1
    return graph.build()


def transformer(nodes: int) -> DataflowGraph:
    """Encoder layers with an attention mask that all of them read."""
    graph = GraphBuilder((1, 128, 256))
    x, mask, count = graph.input("x"), graph.input("mask"), 2
    mask = graph.add("Mul", graph.add("Sub", graph.weight(), mask), graph.weight())
    while count < nodes:
        q, k, v = (_head(graph, x) for _ in range(3))
        scores = graph.add("Div", graph.add("MatMul", q, k), graph.weight())
        weights = graph.add("Softmax", graph.add("Add", scores, mask))
        heads = graph.add("Transpose", graph.add("MatMul", weights, v))
        y = _dense(graph, graph.add("Reshape", heads, graph.weight()))
        x = graph.add("LayerNormalization", graph.add("Add", x, y))
        y = _dense(graph, graph.add("Gelu", _dense(graph, x)))
        x = graph.add("LayerNormalization", graph.add("Add", x, y))
        count += 30
    return graph.build()


def _dense(graph: GraphBuilder, x: str) -> str:
    return graph.add("Add", graph.add("MatMul", x, graph.weight()), graph.weight())


def _head(graph: GraphBuilder, x: str) -> str:
    return graph.add("Transpose", graph.add("Reshape", _dense(graph, x), graph.weight()))


@dataclass(frozen=True)
class Graph:
    """The part of a `Function` read by rules."""

    graph: DataflowGraph


class AnyBackend(Backend):
    """A backend with support for every node."""

    def __init__(self, name: str, style: BackendStyle) -> None:
        self.name, self.style = name, style

    def availability(self) -> Availability:
        return Availability("")

    def unsupported(self, function: object, node: int) -> str | None:
        return None

    def compile(
        self, function: object, nodes: int, context: BuildContext, variant: str = ""
    ) -> Kernel:
        raise NotImplementedError


BACKENDS = (
    AnyBackend("tvm", BackendStyle.NATIVE),
    AnyBackend("onednn", BackendStyle.LIBRARY),
    AnyBackend("onnxruntime", BackendStyle.GRAPH),
    AnyBackend("openvino", BackendStyle.GRAPH),
)


def main(sizes: list[int]) -> None:
    """Print one line per graph and size."""
    print(f"{'graph':14} {'nodes':>6} {'candidates':>11} {'seconds':>8}   per backend")
    for make in (residual_cnn, transformer):
        for size in sizes:
            graph = make(size)
            start = time.perf_counter()
            candidates = find_candidates(Graph(graph), BACKENDS)  # type: ignore[arg-type]
            seconds = time.perf_counter() - start
            counts: dict[str, int] = {}
            for candidate in candidates:
                counts[candidate.backend] = counts.get(candidate.backend, 0) + 1
            by_backend = " ".join(f"{name}={count}" for name, count in sorted(counts.items()))
            print(
                f"{make.__name__:14} {len(graph):6} {len(candidates):11} {seconds:8.2f}   {by_backend}"
            )


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [200, 1000])

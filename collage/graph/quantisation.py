"""Quantised graphs: which operators make one, and which of them multiply small integers.

A quantised graph rounds to small integers. Two correct roundings of one value may differ by one step, so its
outputs have a tolerance of their own (`collage.runtime.tolerances`). An operator that only reads small
integers (DequantizeLinear, MatMulInteger) is exact and has the tolerance of any other operator.
"""

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, indices

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


def is_quantised(graph: DataflowGraph, nodes: IndexSet | None = None) -> bool:
    """Tell whether an operator of the graph, or of its nodes `nodes`, rounds to small integers.

    QuantizeLinear and DynamicQuantizeLinear do, and so do QLinearConv and its kin.
    """
    chosen = graph.nodes if nodes is None else (graph.nodes[index] for index in indices(nodes))
    return any("Quant" in node.op or "QLinear" in node.op for node in chosen)


def computes_int8(graph: DataflowGraph, nodes: IndexSet) -> bool:
    """Tell whether `nodes` have a product of small integers.

    Such a product is an operator on integers (QLinearConv, MatMulInteger), or one of dequantised
    operands.
    """
    ops = {graph.nodes[index].op for index in indices(nodes)}
    if any(op.startswith("QLinear") or op.endswith("Integer") for op in ops):
        return True
    return DEQUANTIZE in ops and bool(ops & _PRODUCTS)

"""Norms: over the last axes of a tensor (layer, RMS), over each channel (instance, batch).

cuDNN's graph interface has layer, RMS and instance norm as one operation each (developer guide,
"Normalization Forward"): rows are [rows, length, 1, 1] with scale and bias [1, length, 1, 1]. Batch norm of
running statistics is in the descriptor interface; the graph interface's is for training.

Before opset 23 ONNX has no RMS norm: exporters write a mean of squares, a root, a product. This form is
recognised over the last axis, with or without a product with weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from collage.backends.nvidia.cudnn.graph_builder import CudnnGraphBuilder
from collage.backends.nvidia.product import DTYPES
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet, indices
from collage.graph.sub_graph import SubGraph
from collage.rules.pattern import Match, Pattern, Wildcard, is_constant, matches, op
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal

EPSILON = 1e-5
RMS_NORM_LABEL = "rms_norm"
ROWS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
CHANNELS = ("InstanceNormalization",)


def row_norm_refusal(function: Function, node: Node) -> str | None:
    """Return why cuDNN does not compute a norm over the last axes, None where it does."""
    graph = function.graph
    if any(name in graph.readers or name in graph.outputs for name in node.outputs[1:] if name):
        return f"{node.op} whose mean or deviation is used"
    shape, axis = _rows(function, node)
    if any(graph.types[name].shape != shape[axis:] for name in filter(None, node.inputs[1:])):
        return f"{node.op} with a scale or bias of another shape"
    if node.inputs[0] in function.weights:
        return f"{node.op} of a constant"
    return None


def channel_norm_refusal(function: Function, node: Node) -> str | None:
    """Return why cuDNN does not compute a norm over channels, None where it does."""
    graph = function.graph
    if any(name not in function.weights for name in node.inputs[1:]):
        return f"{node.op} whose parameters are computed"
    if node_attributes(function, node.index).integer("training_mode", 0) or len(node.outputs) > 1:
        return f"{node.op} in training"
    if not 3 <= len(graph.types[node.inputs[0]].shape) <= 5:
        return f"{node.op} over {len(graph.types[node.inputs[0]].shape) - 2} dimensions"
    return None


def describe_norm(function: Function, node: Node, rank: int) -> CudnnGraphBuilder:
    """Return the operation graph of a node of `ROWS` or `CHANNELS`."""
    graph, region = function.graph, CudnnGraphBuilder(function, 1 << node.index)
    epsilon = node_attributes(function, node.index).number("epsilon", EPSILON)
    if node.op in CHANNELS:
        shape = graph.types[node.inputs[0]].shape
        extents = (*shape[:2], prod(shape[2:]), 1)
        scale, bias = (
            region.constant(function.weights[name].astype(np.float32).reshape(1, -1, 1, 1))
            for name in node.inputs[1:]
        )
        _norm(region, "instance", (node.inputs[0], node.outputs[0]), extents,
              rank=rank, epsilon=epsilon, scale=scale, bias=bias)  # fmt: skip
        return region
    shape, axis = _rows(function, node)
    length = prod(shape[axis:])
    parameters = {"scale": region.named(node.inputs[1], (1, length, 1, 1))}
    if node.op == "LayerNormalization":
        has_bias = len(node.inputs) > 2 and node.inputs[2]
        parameters["bias"] = (
            region.named(node.inputs[2], (1, length, 1, 1))
            if has_bias
            else region.constant(np.zeros((1, length, 1, 1), np.float32))
        )
    mode = "layer" if node.op == "LayerNormalization" else "rms"
    extents = (prod(shape[:axis]), length, 1, 1)
    _norm(
        region,
        mode,
        (node.inputs[0], node.outputs[0]),
        extents,
        rank=rank,
        epsilon=epsilon,
        **parameters,
    )
    return region


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis; `scale` "" for none."""

    nodes: IndexSet
    x: str
    y: str
    scale: str
    epsilon: float


def rms_norm_pattern() -> Pattern:
    """Return the pattern with named nodes, with or without a product with weights."""
    x = Wildcard()
    square = op("Pow", x, is_constant(), name="square") | op("Mul", x, x)
    mean = op("ReduceMean", square, name="mean")
    root = op("Sqrt", op("Add", mean, is_constant(), name="sum"))
    inverse = op("Reciprocal", root) | op("Div", is_constant(), root, name="one")
    normed = op("Mul", x, inverse, name="norm") | op("Div", x, root, name="norm")
    return normed | op("Mul", normed, is_constant(), name="scaled")


def rms_norms(function: Function) -> Iterator[tuple[Match, RmsNorm | str]]:
    """Yield each match with its norm, or the reason of cuDNN's refusal."""
    for match in matches(rms_norm_pattern(), function.graph):
        try:
            yield match, _read(function, match)
        except BackendError as error:
            yield match, str(error)


def describe_rms_norm(function: Function, nodes: IndexSet, rank: int) -> CudnnGraphBuilder:
    """Return the operation graph of the RMS norm of exactly `nodes`.

    Raises:
        BackendError: `nodes` are no RMS norm.
    """
    norms = (candidate for _, candidate in rms_norms(function) if isinstance(candidate, RmsNorm))
    norm = next((candidate for candidate in norms if candidate.nodes == nodes), None)
    if norm is None:
        raise BackendError("this is no RMS norm that cuDNN computes")
    region, shape = CudnnGraphBuilder(function, nodes), function.graph.types[norm.x].shape
    extents, parameters = (prod(shape[:-1]), shape[-1], 1, 1), (1, shape[-1], 1, 1)
    unit_scale = np.ones(parameters, np.float32)
    scale = region.named(norm.scale, parameters) if norm.scale else region.constant(unit_scale)
    _norm(region, "rms", (norm.x, norm.y), extents, rank=rank, epsilon=norm.epsilon, scale=scale)
    return region


@dataclass(frozen=True)
class RmsNormRule(PartitionRule):
    """RMS norms of several nodes."""

    function: Function

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, norm.nodes, (), RMS_NORM_LABEL), spec, "RmsNormRule")
            for _, norm in rms_norms(self.function)
            if isinstance(norm, RmsNorm)
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        norms = rms_norms(self.function)
        return [
            Refusal(match.nodes, RMS_NORM_LABEL, reason)
            for match, reason in norms
            if isinstance(reason, str)
        ]


def _norm(
    region: CudnnGraphBuilder, mode: str, names: tuple[str, str], extents: tuple[int, ...],
    *, rank: int, epsilon: float, **parameters: int,
) -> None:  # fmt: skip
    region.begin(rank)
    x, y = (region.named(name, extents) for name in names)
    number = region.number(epsilon, len(extents))
    region.operation("norm", mode=mode, x=x, y=y, epsilon=number, **parameters)


def _rows(function: Function, node: Node) -> tuple[tuple[int, ...], int]:
    shape = function.graph.types[node.inputs[0]].shape
    axis = node_attributes(function, node.index).integer("axis", -1)
    return shape, axis % len(shape)


def _read(function: Function, match: Match) -> RmsNorm:
    graph = function.graph
    inner = match.nodes & ~(1 << match.root)
    for index in indices(inner):
        if not graph.is_private(graph.nodes[index].outputs[0], match.nodes):
            raise BackendError(f"{graph.nodes[index].op}'s result is needed outside of the norm")
    y, mean = graph.nodes[match.root].outputs[0], match.node("mean")
    x = graph.nodes[graph.producer[mean.inputs[0]]].inputs[0]
    kind = graph.types.get(x)
    if kind is None or kind.dtype not in DTYPES or not kind.shape:
        raise BackendError("an RMS norm of values whose type is not known or not taken")
    if graph.types[mean.outputs[0]].shape != (*kind.shape[:-1], 1) or kind.shape[-1] == 1:
        raise BackendError("an RMS norm that is not over the last axis")
    for name, expected in (("square", 2.0), ("one", 1.0)):
        if name in match.named and _number(function, match.node(name)) != expected:
            raise BackendError("this is no RMS norm: it has another power or numerator")
    epsilon = _number(function, match.node("sum"))
    scale = _scale(function, match, kind.shape[-1])
    if graph.types[y] != kind:
        raise BackendError("an RMS norm whose scale makes it larger")
    return RmsNorm(match.nodes, x, y, scale, epsilon=epsilon)


def _number(function: Function, node: Node) -> float:
    """Return the constant of one element among a node's operands."""
    for name in node.inputs:
        if (array := function.weights.get(name)) is not None and array.size == 1:
            return float(array.reshape(())[()])
    raise BackendError("an RMS norm with a constant of many elements")


def _scale(function: Function, match: Match, length: int) -> str:
    if "scaled" not in match.named:
        return ""
    for name in match.node("scaled").inputs:
        if name in function.weights:
            if function.weights[name].shape not in ((length,), (1, length), (1, 1, length)):
                raise BackendError("an RMS norm whose scale is no vector of the row's length")
            return name
    raise BackendError("an RMS norm whose scale is computed")

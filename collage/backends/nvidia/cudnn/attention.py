"""Scaled dot-product attention: softmax(scale * Q K + mask) V as one operation graph.

The ONNX form is a product, a scale, a summand, a softmax and a product. Transpositions of operands and result
become strides. cuDNN's flash attention supports float16 and bfloat16, heads of up to 256 values in multiples
of 8, and masks with full or unit dimensions (developer guide, "Fused Flash Attention fprop"; checked with
cuDNN 9.19 for an H200). Its pattern is that of training: it also writes the logarithm of each row's sum, into
a scratch buffer here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from collage.backends.nvidia.cudnn.graph_builder import CudnnGraphBuilder, strides_of
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet
from collage.graph.sub_graph import SubGraph
from collage.rules.pattern import Match, Pattern, matches, op, wildcard
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal

MOST_VALUES, STEP = 256, 8
ATTENTION_LABEL = "attention"


@dataclass(frozen=True)
class StridedView:
    """A value viewed with the attention's four dimensions; `order` lists the value's dimensions."""

    name: str
    order: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True)
class Attention:
    """Q [batch, heads, rows, values], K [batch, heads, values, columns], V, the result; mask "" for none."""

    nodes: IndexSet
    query: StridedView
    keys: StridedView
    values: StridedView
    result: StridedView
    scale: float = 1.0
    mask: str = ""


def attention_pattern() -> Pattern:
    """Return the pattern with named nodes."""
    scores = op("MatMul", wildcard(), wildcard(), name="scores")
    scaled = scores.optional(lambda p: op(("Mul", "Div"), p, wildcard(), name="scale"))
    masked = scaled.optional(lambda p: op("Add", p, wildcard(), name="mask"))
    weights = op("Softmax", masked, name="softmax")
    return op("MatMul", weights, wildcard(), name="result")


def read_attention(function: Function, match: Match) -> Attention:
    """Return the attention of a match, with the transpositions of its operands.

    Raises:
        BackendError: cuDNN does not compute it, with the reason.
    """
    inner = match.nodes & ~(1 << match.root)
    for name in match.named:
        node = match.node(name)
        if 1 << node.index & inner and not match.graph.is_private(node.outputs[0], match.nodes):
            raise BackendError(f"{node.op}'s result is needed outside of the attention")
    _check_types(function, match)
    scores, result = match.node("scores"), match.node("result")
    operands = {
        "query": (scores.inputs[0], 3), "keys": (scores.inputs[1], 2), "values": (result.inputs[1], 3),
    }  # fmt: skip
    nodes, views = match.nodes, {}
    for name, (value, innermost) in operands.items():
        if value in function.weights:
            raise BackendError(f"the {name} are a constant")
        views[name], transposition = _operand(function, value, innermost)
        nodes |= transposition
    if views["keys"].order[2] != 3:
        raise BackendError("the keys are not a transposition: the values of each lie apart")
    scale, mask = _scale(function, match), _mask(function, match)
    return Attention(nodes, **views, result=StridedView(result.outputs[0]), scale=scale, mask=mask)


def with_transposed_result(function: Function, attention: Attention) -> Attention | None:
    """Return the attention with the following transposition of its result, None without one."""
    graph, name = function.graph, attention.result.name
    readers = graph.readers.get(name, 0)
    if readers.bit_count() != 1 or name in graph.outputs:
        return None
    node = graph.nodes[readers.bit_length() - 1]
    if node.op != "Transpose" or node.outputs[0] not in graph.types:
        return None
    order = _permutation(function, node)
    if order[3] != 3:
        return None
    result = StridedView(node.outputs[0], tuple(order.index(axis) for axis in range(4)))
    fields = {**vars(attention), "nodes": attention.nodes | 1 << node.index, "result": result}
    return Attention(**fields)


@dataclass(frozen=True)
class AttentionRule(PartitionRule):
    """Attentions of cuDNN, without and with a transposition of the result."""

    function: Function

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, attention.nodes, (), ATTENTION_LABEL), spec, "AttentionRule")
            for attention in attentions(self.function)
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        refusals = []
        for match in matches(attention_pattern(), graph):
            try:
                read_attention(self.function, match)
            except BackendError as error:
                refusals.append(Refusal(match.nodes, ATTENTION_LABEL, str(error)))
        return refusals


def attentions(function: Function) -> Iterator[Attention]:
    """Yield the attentions of cuDNN, each set of nodes once."""
    node_sets = set()
    for match in matches(attention_pattern(), function.graph):
        try:
            plain = read_attention(function, match)
        except BackendError:  # `AttentionRule.refusals` reports it
            continue
        for attention in (plain, with_transposed_result(function, plain)):
            if attention is not None and attention.nodes not in node_sets:
                node_sets.add(attention.nodes)
                yield attention


def describe_attention(function: Function, nodes: IndexSet, rank: int) -> CudnnGraphBuilder:
    """Return the operation graph of the attention of exactly `nodes`.

    Raises:
        BackendError: `nodes` are no attention.
    """
    attention = next(
        (candidate for candidate in attentions(function) if candidate.nodes == nodes), None
    )
    if attention is None:
        raise BackendError("this is no attention that cuDNN computes")
    region = CudnnGraphBuilder(function, nodes)
    shapes: dict[int, tuple[int, ...]] = {}
    query, keys, values, result = (
        _add_view(region, function, view, shapes)
        for view in (attention.query, attention.keys, attention.values, attention.result)
    )
    score_shape = (*shapes[query][:3], shapes[keys][3])
    rows = (*score_shape[:3], 1)
    dtype = function.graph.types[attention.query.name].dtype
    statistics = region.buffer("float32", rows)
    region.begin(rank)
    scores = region.virtual(score_shape)
    region.operation("matmul", a=query, b=keys, y=scores)
    scores = _then(region, scores, "mul", region.number(attention.scale, 4))
    if attention.mask:
        extents = function.graph.types[attention.mask].shape
        mask = region.named(attention.mask, (*(1,) * (4 - len(extents)), *extents))
        scores = _then(region, scores, "add", mask)
    maximum, total, logarithm = (region.virtual(rows) for _ in range(3))
    region.operation("reduction", mode="max", x=scores, y=maximum)
    powers = _then(region, _then(region, scores, "sub", maximum), "exp")
    region.operation("reduction", mode="sum", x=powers, y=total)
    region.pointwise("log", x=total, y=logarithm)
    region.pointwise("add", x=maximum, b=logarithm, y=statistics)
    weights = region.virtual(score_shape, dtype=dtype)
    region.pointwise("div", x=powers, b=total, y=weights)
    region.operation("matmul", a=weights, b=values, y=result)
    return region


def _then(region: CudnnGraphBuilder, x: int, mode: str, b: int | None = None) -> int:
    y = region.like(x)
    region.pointwise(mode, x=x, y=y, **({} if b is None else {"b": b}))
    return y


def _add_view(
    region: CudnnGraphBuilder,
    function: Function,
    view: StridedView,
    shapes: dict[int, tuple[int, ...]],
) -> int:
    """Add the value with the attention's four dimensions; note its extents in `shapes`."""
    shape = function.graph.types[view.name].shape
    strides = strides_of(shape)
    permuted = tuple(shape[axis] for axis in view.order)
    value = region.named(view.name, permuted, [strides[axis] for axis in view.order])
    shapes[value] = permuted
    return value


def _check_types(function: Function, match: Match) -> None:
    types = function.graph.types
    scores, result = match.node("scores"), match.node("result")
    operand_types = [types.get(name) for name in (*scores.inputs, result.inputs[1])]
    if any(
        operand_type is None or len(operand_type.shape) != 4 or 0 in operand_type.shape
        for operand_type in operand_types
    ):
        raise BackendError("the attention's operands are not [batch, heads, length, values]")
    query, keys, values = (
        operand_type for operand_type in operand_types if operand_type is not None
    )
    if query.dtype not in ("float16", "bfloat16"):
        raise BackendError(f"attention in {query.dtype}: cuDNN's takes float16 and bfloat16")
    if not query.shape[:2] == keys.shape[:2] == values.shape[:2]:
        raise BackendError("attention with other heads or batches of keys and values")
    for length in (query.shape[-1], values.shape[-1]):
        if length > MOST_VALUES or length % STEP:
            raise BackendError(f"heads of {length} values")
    softmax = match.node("softmax")
    axis = node_attributes(function, softmax.index).integer("axis", -1)
    if axis not in (-1, 3) or function.opsets.get("", 1) < 13:
        raise BackendError(f"attention with a softmax over axis {axis}")


def _operand(function: Function, value: str, innermost: int) -> tuple[StridedView, IndexSet]:
    """Return the operand, viewed through its transposition if possible, with the transposition's node.

    The transposition must have no other reader, and dimension `innermost` must remain contiguous.
    """
    graph = function.graph
    index = graph.producer.get(value)
    if index is None or graph.nodes[index].op != "Transpose" or value in graph.outputs:
        return StridedView(value), 0
    node = graph.nodes[index]
    outside = node.inputs[0] in function.weights or node.inputs[0] not in graph.types
    order = _permutation(function, node)
    if outside or graph.readers[value].bit_count() != 1 or order[innermost] != 3:
        return StridedView(value), 0
    return StridedView(node.inputs[0], order), 1 << index


def _permutation(function: Function, node: Node) -> tuple[int, ...]:
    return node_attributes(function, node.index).integers("perm", ()) or (3, 2, 1, 0)


def _scale(function: Function, match: Match) -> float:
    if "scale" not in match.named:
        return 1.0
    node, before = match.node("scale"), match.node("scores").outputs[0]
    operand = node.inputs[1] if node.inputs[0] == before else node.inputs[0]
    array = function.weights.get(operand)
    if array is None or array.size != 1:
        raise BackendError("attention with a scale that is no constant number")
    number = float(array.reshape(())[()])
    return 1 / number if node.op == "Div" else number


def _mask(function: Function, match: Match) -> str:
    if "mask" not in match.named:
        return ""
    node = match.node("mask")
    before = match.node("scale" if "scale" in match.named else "scores").outputs[0]
    mask = node.inputs[1] if node.inputs[0] == before else node.inputs[0]
    types = function.graph.types
    score_type, mask_type = types[node.outputs[0]], types.get(mask)
    if (
        mask_type is None
        or mask_type.dtype != score_type.dtype
        or score_type.shape != types[before].shape
    ):
        raise BackendError("attention with a mask of another type")
    padded = (1,) * (4 - len(mask_type.shape)) + mask_type.shape
    if any(
        extent not in (1, score_extent)
        for extent, score_extent in zip(padded, score_type.shape, strict=True)
    ):
        raise BackendError("attention with a mask of another shape")
    return mask

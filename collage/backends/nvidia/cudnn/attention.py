"""Scaled dot-product attention: softmax(scale * Q K + mask) V as one operation graph.

Recognised as ONNX spells it: a product, a scale, a summand, a softmax, a product, with the
transpositions of its operands and its result, which are strides. cuDNN's flash attention takes
float16 and bfloat16, heads in multiples of 8 values up to 256, and a mask of which each dimension
is whole or 1 (developer guide, "Fused Flash Attention fprop"; asked of cuDNN 9.19 for an H200). The
pattern that it knows is that of training: it also writes the logarithm of each row's sum, which
lands in a buffer here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from collage.backends.nvidia.cudnn.region import Region, strides_of
from collage.backends.nvidia.product import attributes
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import IndexSet
from collage.graph.sub_graph import SubGraph
from collage.rules.pattern import Match, Pattern, matches, op, wildcard
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal

MOST_VALUES, STEP = 256, 8
LABEL = "attention"


@dataclass(frozen=True)
class View:
    """An operand or the result: the value outside, and dimension of it that each of the four is."""

    name: str
    order: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True)
class Attention:
    """Q [batch, heads, rows, values], K [batch, heads, values, columns], V, the result; mask "" for none."""

    nodes: IndexSet
    query: View
    keys: View
    values: View
    result: View
    scale: float = 1.0
    mask: str = ""


def attention_pattern() -> Pattern:
    """The spelling, with the names of its nodes."""
    scores = op("MatMul", wildcard(), wildcard(), name="scores")
    scaled = scores.optional(lambda p: op(("Mul", "Div"), p, wildcard(), name="scale"))
    masked = scaled.optional(lambda p: op("Add", p, wildcard(), name="mask"))
    weights = op("Softmax", masked, name="softmax")
    return op("MatMul", weights, wildcard(), name="result")


def read_attention(function: Function, match: Match) -> Attention:
    """Return the attention of a match, with the transpositions at its border.

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
        views[name], more = _operand(function, value, innermost)
        nodes |= more
    if views["keys"].order[2] != 3:
        raise BackendError("the keys are not a transposition: the values of each lie apart")
    scale, mask = _scale(function, match), _mask(function, match)
    return Attention(nodes, **views, result=View(result.outputs[0]), scale=scale, mask=mask)


def with_result_turned(function: Function, found: Attention) -> Attention | None:
    """Return the attention that also transposes its result, where the model does so next."""
    graph, name = function.graph, found.result.name
    readers = graph.readers.get(name, 0)
    if readers.bit_count() != 1 or name in graph.outputs:
        return None
    node = graph.nodes[readers.bit_length() - 1]
    if node.op != "Transpose" or node.outputs[0] not in graph.types:
        return None
    order = _permutation(function, node)
    if order[3] != 3:
        return None
    result = View(node.outputs[0], tuple(order.index(axis) for axis in range(4)))
    fields = {**vars(found), "nodes": found.nodes | 1 << node.index, "result": result}
    return Attention(**fields)


@dataclass(frozen=True)
class AttentionRule(PartitionRule):
    """Each attention that cuDNN computes, and the same with its result transposed."""

    function: Function

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, one.nodes, (), LABEL), spec, "AttentionRule")
            for one in attentions(self.function)
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        found = []
        for match in matches(attention_pattern(), graph):
            try:
                read_attention(self.function, match)
            except BackendError as error:
                found.append(Refusal(match.nodes, LABEL, str(error)))
        return found


def attentions(function: Function) -> Iterator[Attention]:
    """Yield every attention that cuDNN computes, each set of nodes once."""
    seen = set()
    for match in matches(attention_pattern(), function.graph):
        try:
            found = read_attention(function, match)
        except BackendError:
            continue
        for one in (found, with_result_turned(function, found)):
            if one is not None and one.nodes not in seen:
                seen.add(one.nodes)
                yield one


def describe_attention(function: Function, nodes: IndexSet, rank: int) -> Region:
    """Describe the attention that consists of `nodes` for the plug-in.

    Raises:
        BackendError: there is none.
    """
    found = next((one for one in attentions(function) if one.nodes == nodes), None)
    if found is None:
        raise BackendError("this is no attention that cuDNN computes")
    region = Region(function, nodes)
    shapes: dict[int, tuple[int, ...]] = {}
    query, keys, values, result = (
        _seen(region, function, view, shapes)
        for view in (found.query, found.keys, found.values, found.result)
    )
    whole = (*shapes[query][:3], shapes[keys][3])
    rows = (*whole[:3], 1)
    dtype = function.graph.types[found.query.name].dtype
    statistics = region.buffer("float32", rows)
    region.begin(rank)
    scores = region.virtual(whole)
    region.operation("matmul", a=query, b=keys, y=scores)
    scores = _then(region, scores, "mul", region.number(found.scale, 4))
    if found.mask:
        extents = function.graph.types[found.mask].shape
        mask = region.named(found.mask, (*(1,) * (4 - len(extents)), *extents))
        scores = _then(region, scores, "add", mask)
    most, total, logarithm = (region.virtual(rows) for _ in range(3))
    region.operation("reduction", mode="max", x=scores, y=most)
    powers = _then(region, _then(region, scores, "sub", most), "exp")
    region.operation("reduction", mode="sum", x=powers, y=total)
    region.pointwise("log", x=total, y=logarithm)
    region.pointwise("add", x=most, b=logarithm, y=statistics)
    weights = region.virtual(whole, dtype=dtype)
    region.pointwise("div", x=powers, b=total, y=weights)
    region.operation("matmul", a=weights, b=values, y=result)
    return region


def _then(region: Region, x: int, mode: str, b: int | None = None) -> int:
    y = region.like(x)
    region.pointwise(mode, x=x, y=y, **({} if b is None else {"b": b}))
    return y


def _seen(
    region: Region, function: Function, view: View, shapes: dict[int, tuple[int, ...]]
) -> int:
    """The value as the attention's four dimensions; notes its extents in `shapes`."""
    shape = function.graph.types[view.name].shape
    strides = strides_of(shape)
    turned = tuple(shape[axis] for axis in view.order)
    value = region.named(view.name, turned, [strides[axis] for axis in view.order])
    shapes[value] = turned
    return value


def _check_types(function: Function, match: Match) -> None:
    types = function.graph.types
    scores, result = match.node("scores"), match.node("result")
    found = [types.get(name) for name in (*scores.inputs, result.inputs[1])]
    if any(one is None or len(one.shape) != 4 or 0 in one.shape for one in found):
        raise BackendError("the attention's operands are not [batch, heads, length, values]")
    query, keys, values = (one for one in found if one is not None)
    if query.dtype not in ("float16", "bfloat16"):
        raise BackendError(f"attention in {query.dtype}: cuDNN's takes float16 and bfloat16")
    if not query.shape[:2] == keys.shape[:2] == values.shape[:2]:
        raise BackendError("attention with other heads or batches of keys and values")
    for length in (query.shape[-1], values.shape[-1]):
        if length > MOST_VALUES or length % STEP:
            raise BackendError(f"heads of {length} values")
    softmax = match.node("softmax")
    axis = int(attributes(function, softmax.index).get("axis", -1))  # type: ignore[call-overload]
    if axis not in (-1, 3) or function.opsets.get("", 1) < 13:
        raise BackendError(f"attention with a softmax over axis {axis}")


def _operand(function: Function, value: str, innermost: int) -> tuple[View, IndexSet]:
    """The operand, or what a transposition makes it of: where nobody else reads it, and the elements
    of dimension `innermost` stay side by side.
    """
    graph = function.graph
    index = graph.producer.get(value)
    if index is None or graph.nodes[index].op != "Transpose" or value in graph.outputs:
        return View(value), 0
    node = graph.nodes[index]
    outside = node.inputs[0] in function.weights or node.inputs[0] not in graph.types
    order = _permutation(function, node)
    if outside or graph.readers[value].bit_count() != 1 or order[innermost] != 3:
        return View(value), 0
    return View(node.inputs[0], order), 1 << index


def _permutation(function: Function, node: Node) -> tuple[int, ...]:
    given = attributes(function, node.index).get("perm")
    return tuple(given) if given else (3, 2, 1, 0)  # type: ignore[arg-type]


def _scale(function: Function, match: Match) -> float:
    if "scale" not in match.named:
        return 1.0
    node, before = match.node("scale"), match.node("scores").outputs[0]
    other = node.inputs[1] if node.inputs[0] == before else node.inputs[0]
    array = function.weights.get(other)
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
    whole, found = types[node.outputs[0]], types.get(mask)
    if found is None or found.dtype != whole.dtype or whole.shape != types[before].shape:
        raise BackendError("attention with a mask of another type")
    padded = (1,) * (4 - len(found.shape)) + found.shape
    if any(one not in (1, all_) for one, all_ in zip(padded, whole.shape, strict=True)):
        raise BackendError("attention with a mask of another shape")
    return mask

"""Scaled dot-product attention: softmax(scale * Q K + mask) V as one operation.

Recognised as ONNX spells it: a product, a scale, a summand, a softmax, a product. cuDNN computes it in
float16 and bfloat16, with heads of at most 256 values in multiples of 8.
"""

from dataclasses import dataclass

from collage.backends.nvidia.operands import Operands
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, is_subset
from collage.graph.sub_graph import SubGraph
from collage.rules.pattern import Match, Pattern, matches, op, wildcard
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal
from collage.runtime.blob import Header

MOST_VALUES, STEP = 256, 8


@dataclass(frozen=True)
class Attention:
    """Operands by value name; `mask` is "" for none."""

    query: str
    key: str
    value: str
    mask: str
    scale: float

    def header(self, operands: Operands) -> Header:
        names = (self.query, self.key, self.value, self.mask)
        return {
            "operation": "attention", "scale": self.scale,
            "operands": [operands.number(name) for name in names],
        }  # fmt: skip


def attention_pattern() -> Pattern:
    """The spelling, with the names of its nodes."""
    scores = op("MatMul", wildcard(), wildcard(), name="scores")
    scaled = scores.optional(lambda p: op(("Mul", "Div"), p, wildcard(), name="scale"))
    masked = scaled.optional(lambda p: op("Add", p, wildcard(), name="mask"))
    weights = op("Softmax", masked, name="softmax")
    return op("MatMul", weights, wildcard(), name="result")


def attention_refusal(function: Function, match: Match) -> str | None:
    """Return why cuDNN does not compute the match as one operation, or None when it does."""
    graph = function.graph
    inner = match.nodes & ~(1 << match.root)
    for name in match.named:
        node = match.node(name)
        readers = graph.readers.get(node.outputs[0], 0)
        if 1 << node.index & inner and (
            not is_subset(readers, match.nodes) or node.outputs[0] in graph.outputs
        ):
            return f"{node.op}'s result is needed outside of the attention"
    query = graph.types.get(match.node("scores").inputs[0])
    value = graph.types.get(match.node("result").inputs[1])
    if query is None or value is None or len(query.shape) != 4 or len(value.shape) != 4:
        return "the attention's operands are not [batch, heads, length, values]"
    if query.dtype not in ("float16", "bfloat16"):
        return f"attention in {query.dtype}: cuDNN's takes float16 and bfloat16"
    if max(query.shape[-1], value.shape[-1]) > MOST_VALUES or query.shape[-1] % STEP:
        return f"heads of {query.shape[-1]} values"
    return _scale_refusal(function, match)


def _scale_refusal(function: Function, match: Match) -> str | None:
    if "scale" not in match.named:
        return None
    scale = function.weights.get(_other(match, "scale"))
    return None if scale is not None and scale.size == 1 else "the scale is no constant number"


def _other(match: Match, name: str) -> str:
    """The operand of a binary node that does not come from inside the match."""
    producer = match.graph.producer
    left, right = match.node(name).inputs
    inside = match.nodes >> producer[left] & 1 if left in producer else 0
    return right if inside else left


@dataclass(frozen=True)
class AttentionRule(PartitionRule):
    """Every attention that cuDNN computes."""

    function: Function

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, match.nodes, (), "attention"), spec, "AttentionRule")
            for match in matches(attention_pattern(), graph)
            if attention_refusal(self.function, match) is None
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        found = [
            (m, attention_refusal(self.function, m)) for m in matches(attention_pattern(), graph)
        ]
        return [Refusal(m.nodes, "attention", reason) for m, reason in found if reason]


def read_attention(function: Function, nodes: IndexSet) -> Attention | None:
    """Return the attention that consists of exactly `nodes`, or None when they are none.

    Raises:
        BackendError: they are one that cuDNN does not compute.
    """
    for match in matches(attention_pattern(), function.graph):
        if match.nodes == nodes:
            if reason := attention_refusal(function, match):
                raise BackendError(reason)
            return _attention(function, match)
    return None


def _attention(function: Function, match: Match) -> Attention:
    query, key = match.node("scores").inputs
    scale = 1.0
    if "scale" in match.named:
        number = float(function.weights[_other(match, "scale")].reshape(()))
        scale = 1 / number if match.node("scale").op == "Div" else number
    mask = _other(match, "mask") if "mask" in match.named else ""
    return Attention(query, key, match.node("result").inputs[1], mask, scale)

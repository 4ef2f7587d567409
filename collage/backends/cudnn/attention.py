"""Scaled dot-product attention: softmax(scale * Q K + mask) V as one operation.

Recognised as ONNX spells it: a product, a scale, a summand, a softmax, a product. cuDNN computes it in
float16 and bfloat16, with heads of at most 256 values in multiples of 8, in its graph interface. The
plug-in does not call that one, so each is listed with the reason why it is no candidate.
"""

from dataclasses import dataclass

from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import is_subset
from collage.rules.pattern import Match, Pattern, matches, op, wildcard
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal

MOST_VALUES, STEP = 256, 8


def attention_pattern() -> Pattern:
    """The spelling, with the names of its nodes."""
    scores = op("MatMul", wildcard(), wildcard(), name="scores")
    scaled = scores.optional(lambda p: op(("Mul", "Div"), p, wildcard(), name="scale"))
    masked = scaled.optional(lambda p: op("Add", p, wildcard(), name="mask"))
    weights = op("Softmax", masked, name="softmax")
    return op("MatMul", weights, wildcard(), name="result")


def attention_refusal(function: Function, match: Match) -> str:
    """Return why the match is no candidate."""
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
    return "attention needs cuDNN's graph interface, which the plug-in does not call"


@dataclass(frozen=True)
class AttentionRule(PartitionRule):
    """No candidates: why each attention is none."""

    function: Function

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return []

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return [
            Refusal(match.nodes, "attention", attention_refusal(self.function, match))
            for match in matches(attention_pattern(), graph)
        ]

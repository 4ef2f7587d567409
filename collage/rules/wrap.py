"""Rules that wrap, join or filter the candidates of other rules."""

from dataclasses import dataclass, replace

from collage.graph.dataflow import DataflowGraph
from collage.graph.sub_graph import NO_LIMITS, SubGraphConfig
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, Refusal, unique


@dataclass(frozen=True)
class Composite(PartitionRule):
    """The sub-rule's candidates, each nested as the composite function `name`."""

    name: str
    rule: PartitionRule

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(
                candidate.sub_graph.with_label(self.name).with_attrs(Composite=self.name),
                spec,
                f"Composite({self.name}).{candidate.origin}",
            )
            for candidate in self.rule.candidates(graph, spec)
        ]


@dataclass(frozen=True)
class Primitive(PartitionRule):
    """The sub-rule's candidates, each nested as one kernel of the spec's backend.

    Kernels of TVM have the attribute `Primitive` only; kernels of other code generators also have `Codegen`.
    """

    rule: PartitionRule
    codegen: bool = True

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        attrs = {"Primitive": "1"} | ({"Codegen": spec.backend} if self.codegen else {})
        return [
            Candidate(
                candidate.sub_graph.with_attrs(**attrs), spec, f"Primitive.{candidate.origin}"
            )
            for candidate in self.rule.candidates(graph, spec)
        ]


@dataclass(frozen=True)
class Union(PartitionRule):
    """The candidates of all sub-rules, equal ones once."""

    rules: tuple[PartitionRule, ...]

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return unique(
            candidate for rule in self.rules for candidate in rule.candidates(graph, spec)
        )

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return [refusal for rule in self.rules for refusal in rule.refusals(graph)]


@dataclass(frozen=True)
class OnlyValid(PartitionRule):
    """The sub-rule's valid candidates under `config`."""

    rule: PartitionRule
    config: SubGraphConfig = NO_LIMITS

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            replace(candidate, origin=f"OnlyValid.{candidate.origin}")
            for candidate in self.rule.candidates(graph, spec)
            if candidate.sub_graph.validity(self.config) is None
        ]

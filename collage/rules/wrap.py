"""Rules that wrap, join or filter the candidates of other rules."""

from dataclasses import dataclass, replace

from collage.errors import OptionError
from collage.graph.dataflow import DataflowGraph
from collage.graph.sub_graph import NO_LIMITS, SubGraphConfig
from collage.rules.composites import COMPOSITE, LABEL
from collage.rules.rule import (
    CODEGEN,
    PRIMITIVE,
    Candidate,
    PartitionRule,
    PartitionSpec,
    Refusal,
    unique,
)


@dataclass(frozen=True)
class Composite(PartitionRule):
    """The sub-rule's candidates, each nested as the composite function `name`.

    The name is a label of the backend (`Backend.labels`): it chooses the implementation that compiles the
    nodes. Several composites of the same nodes are several candidates.
    """

    name: str
    rule: PartitionRule

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.name):
            raise OptionError(
                f"Composite({self.name!r}): a label has letters, digits and the signs _ . + - only"
            )

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(
                candidate.sub_graph.with_attrs(**{COMPOSITE: self.name}),
                spec,
                f"Composite({self.name}).{candidate.origin}",
            )
            for candidate in self.rule.candidates(graph, spec)
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return self.rule.refusals(graph)


@dataclass(frozen=True)
class Primitive(PartitionRule):
    """The sub-rule's candidates, each nested as one kernel of the spec's backend.

    Kernels of TVM have the attribute `Primitive` only: its fusion made them, and nothing joins them further.
    Kernels of other code generators also have `Codegen`: the toolchain optimises across operators itself, so
    adjacent ones of a plan are joined after the search (`collage.search.coalescing`).
    """

    rule: PartitionRule
    codegen: bool = True

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        attrs = {PRIMITIVE: "1"} | ({CODEGEN: spec.backend} if self.codegen else {})
        return [
            Candidate(
                candidate.sub_graph.with_attrs(**attrs), spec, f"Primitive.{candidate.origin}"
            )
            for candidate in self.rule.candidates(graph, spec)
        ]

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return self.rule.refusals(graph)


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

    def refusals(self, graph: DataflowGraph) -> list[Refusal]:
        return self.rule.refusals(graph)

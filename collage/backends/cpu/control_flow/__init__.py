"""Control flow with partitioned bodies: `If`, `Loop` and `Scan` driven by the plug-in.

The compile partitions a body like any other function (`pipeline.bodies`), and its executable becomes a part
of this backend's kernel: the kernel counts turns, carries values and stacks results, and calls the body's
virtual machine. The variants are the body's best plans. The same node whole on a framework competes by
measurement.

This is no toolchain of its own: the compile adds it where a function has a partitioned body.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from collage.backends.base import Availability, Backend, BackendStyle, BuildContext, PluginKernel
from collage.backends.cpu.control_flow.body_plans import function_plans, read_plans
from collage.backends.cpu.control_flow.header import BlobBuilder
from collage.errors import BackendError
from collage.frontend.bodies import is_control_flow
from collage.frontend.model import Function
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, first
from collage.graph.sub_graph import SubGraph
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec

CONTROL_FLOW = "control_flow"
CONTROL_FLOW_REVISION = "1"
"""In every cost key: a new revision of the kernels invalidates the costs of the old ones."""


@dataclass(frozen=True)
class PartitionedBodies(PartitionRule):
    """Every node with plans of its bodies, once for each plan.

    Attributes:
        variants: names of the plans by node.
    """

    variants: tuple[tuple[int, tuple[str, ...]], ...]

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        return [
            Candidate(SubGraph(graph, 1 << node), spec, "PartitionedBodies")
            for node, variants in self.variants
            if spec.variant in variants
        ]


class ControlFlowBackend(Backend):
    """Nodes with partitioned bodies (style LIBRARY: its own rule lists single nodes)."""

    name = CONTROL_FLOW
    style = BackendStyle.LIBRARY
    variants = ("", "second", "third")

    def __init__(self, bodies_dir: Path | None = None, function: str = "") -> None:
        """Offer the nodes of one function.

        Args:
            bodies_dir: folder of the plans; None in a measuring process, whose builds name the folder.
            function: name of the function; its plans are a part of the backend's identity.
        """
        self._bodies_dir, self._function = bodies_dir, function

    def availability(self) -> Availability:
        return Availability("", {"kernels": CONTROL_FLOW_REVISION, "plans": self._plans_digest})

    @property
    def _plans_digest(self) -> str:
        """Digest of the function's plans: a variant's name means another plan in another compile."""
        if self._bodies_dir is None:
            return ""
        planned = function_plans(self._bodies_dir, self._function)
        digests = [plan.digest for node_plans in planned for plan in node_plans.plans]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]

    def unsupported(self, function: Function, node: int) -> str | None:
        if not is_control_flow(function.onnx_nodes[node]):
            return "no control flow"
        if read_plans(self._bodies_dir, function.name, node) is None:
            return "its body is not partitioned"
        return None

    def rule(self, function: Function) -> PartitionRule:
        nodes = [
            (plans.node, tuple(plan.variant for plan in plans.plans))
            for plans in function_plans(self._bodies_dir, function.name)
        ]
        return PartitionedBodies(tuple(nodes))

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> PluginKernel:
        node = first(nodes)
        plans = read_plans(context.bodies_dir, function.name, node)
        if plans is None or nodes != 1 << node:
            raise BackendError("control_flow takes single nodes with a partitioned body")
        plan = plans.plan(variant)
        builder = BlobBuilder(function, node)
        kind, blob = builder.build(plans, plan)
        return PluginKernel(kind, blob, builder.allocates, libraries=frozenset(plan.libraries))

"""The stage of bodies: each body of control flow is partitioned like a function, before its caller.

A body is searched with the caller's options on the values of one turn. Its best plans are assembled into
executables, and the control-flow backend packs these into kernels of the node. Whole-loop kernels of other
backends are candidates too; the caller's search measures both. Bodies of equal structure are searched once.

Nested bodies come first: the inner loop is then a candidate in the search of the outer body. A body without a
plan leaves its node whole, with a note in the report.

On a cluster the controller only searches bodies (`search_bodies`): pods measure their candidates as for any
function. Kernels of nodes need assembled bodies, and so a linker. The pod that builds the bundle has one: it
finds the costs and finished searches of bodies in the store, and measures the kernels of nodes itself.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from collage.assemble import FunctionPlan
from collage.backends.cpu.control_flow import CONTROL_FLOW, ControlFlowBackend
from collage.backends.cpu.control_flow.body_plans import (
    BodiesPlan,
    NodePlans,
    PlannedBody,
    function_plans,
    read_plans,
    write_plans,
)
from collage.errors import BackendError, ClusterError, CollageError, ModelError, SearchError
from collage.frontend import Function, Model
from collage.frontend.model import Body
from collage.frontend.region import region_digest
from collage.masking import mask_numbers
from collage.measure.measurement_request import SearchMeasurer
from collage.options import Precision
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.plans import WholePlans
from collage.pipeline.search_stage import (
    enumerated_function,
    local_measurer,
    search_with_measurements,
)
from collage.rules.rule import HOST
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan
from collage.verify.body_reference import save_body_reference

FOR_PROCESSORS = "bodies of control flow are partitioned for processors only"


@dataclass
class BodyPartitioner:
    """Partitions the bodies of a model's functions.

    Attributes:
        model: the imported model.
        context: shared state of the compile.
    """

    model: Model
    context: CompileContext

    def partition(self, function: Function, reference_dir: Path) -> None:
        """Partition the bodies of a function, nested ones first.

        Args:
            function: function with the nodes.
            reference_dir: folder of the function's reference values.
        """
        if self.context.options.target.is_gpu:
            if function.bodies:
                self.context.notes.append(FOR_PROCESSORS)
            return
        for node, bodies in _bodies_by_node(function):
            try:
                self._partition_node(function, node, bodies, reference_dir)
            except (ModelError, SearchError, BackendError) as error:
                self.context.notes.append(_whole_note(function, node, error))
        self._offer_nodes(function)

    def _partition_node(
        self, function: Function, node: int, bodies: Sequence[Body], reference_dir: Path
    ) -> None:
        plans = [self._plans(function, body, reference_dir) for body in bodies]
        count = min(len(ControlFlowBackend.variants), max(1, *map(len, plans)))
        choices = [
            [
                body_plans[min(rank, len(body_plans) - 1)] if body_plans else None
                for body_plans in plans
            ]
            for rank in range(count)
        ]
        node_plans = NodePlans(
            function.name,
            node,
            tuple(
                PlannedBody(
                    body.function.name,
                    body.attribute,
                    str(body.function.simplified.resolve()),
                    body.results,
                )
                for body in bodies
            ),
            tuple(
                _bodies_plan(variant, choice)
                for variant, choice in zip(ControlFlowBackend.variants, choices, strict=False)
            ),
        )
        write_plans(node_plans, self.context.bodies_dir)
        shown = " and ".join(sorted(node_plans.plans[0].backends)) or "no kernels"
        op = function.graph.nodes[node]
        self.context.notes.append(f"{op.name} ({op.op}) has a candidate with its body on {shown}")

    def _plans(
        self, function: Function, body: Body, reference_dir: Path
    ) -> list["_BodyExecutable"]:
        """Return the executables of a body's best plans; none for a body without operators."""
        if not body.function.graph.nodes:
            return []
        context = self.context
        folder = save_body_reference(
            self.model.path, function, body, reference_dir, work_dir=context.work_dir
        )
        self.partition(body.function, folder)
        open_measurer = partial(local_measurer, body.function, folder, context)
        search = search_body(body.function, context, open_measurer)
        plans = WholePlans(search, context)
        ranked = sorted(search.plans, key=lambda plan: plan.plan.predicted_s)
        return [
            _BodyExecutable.of(plans, plan, context)
            for plan in ranked[: len(ControlFlowBackend.variants)]
        ]

    def _offer_nodes(self, function: Function) -> None:
        """Make the driven nodes of this function, and of no other one, candidates."""
        backends = [b for b in self.context.backends if b.name != CONTROL_FLOW]
        folder = self.context.bodies_dir
        if function_plans(folder, function.name):
            backends.append(ControlFlowBackend(folder, function.name))
        self.context.backends = backends


def search_bodies(
    function: Function,
    context: CompileContext,
    open_measurer: Callable[[Function], SearchMeasurer],
) -> list[str]:
    """Search the bodies of a function, nested ones first, and assemble none.

    Args:
        function: function with the nodes.
        context: shared state of the compile.
        open_measurer: returns the measurer of a body's candidates.

    Returns:
        a note for each node with a body that has no plan.
    """
    if context.options.target.is_gpu:
        return [FOR_PROCESSORS] if function.bodies else []
    notes: dict[str, None] = {}
    for body in function.bodies:
        notes |= dict.fromkeys(search_bodies(body.function, context, open_measurer))
        try:
            if body.function.graph.nodes:
                search_body(body.function, context, partial(open_measurer, body.function))
        except (ModelError, SearchError, BackendError, ClusterError) as error:
            notes[_whole_note(function, body.node, error)] = None
    return list(notes)


def search_body(
    function: Function, context: CompileContext, open_measurer: Callable[[], SearchMeasurer]
) -> FunctionSearch:
    """Search a body, once for all bodies of equal structure.

    Raises:
        SearchError: no plan covers it.
        CollageError: a measurement fails.
    """
    # The caller's search has no error of a body's kernel: reduced precision is not for bodies.
    exact = replace(context, options=replace(context.options, precision=Precision.FP32))
    digest = region_digest(function, function.graph.everything)
    if digest not in context.body_searches:
        enumerated = enumerated_function(function, exact)
        search, _ = search_with_measurements(enumerated, open_measurer(), exact)
        context.body_searches[digest] = search
    search = context.body_searches[digest]
    return replace(search, enumerated=replace(search.enumerated, function=function))


def body_path(function: Function, name: str) -> tuple[Body, ...] | None:
    """Return the bodies from a function to the body of this name; None where there is no such body."""
    for body in function.bodies:
        if body.function.name == name:
            return (body,)
        if (inner := body_path(body.function, name)) is not None:
            return (body, *inner)
    return None


@dataclass(frozen=True)
class _BodyExecutable:
    """One plan of a body with its executable."""

    path: Path
    libraries: frozenset[str]
    backends: frozenset[str]
    digest: str

    @classmethod
    def of(cls, plans: WholePlans, plan: NamedPlan, context: CompileContext) -> "_BodyExecutable":
        path = plans.assemble(plan).path
        kernels = plans.kernels[plan.name]
        built = [planned.kernel for planned in kernels.kernels if planned.kernel]
        keys = [repr(option.key) for option in plan.plan.options]
        return cls(
            path.resolve(),
            frozenset().union(*(kernel.libraries for kernel in built)),
            backends_of(kernels, context),
            hashlib.sha256("\n".join(keys).encode()).hexdigest(),
        )


def backends_of(plan: FunctionPlan, context: CompileContext) -> frozenset[str]:
    """Return the names of the plan's backends; for control flow also those of its bodies."""
    names: set[str] = set()
    for planned in plan.kernels:
        if planned.backend == CONTROL_FLOW:
            node = planned.nodes.bit_length() - 1
            plans = read_plans(context.bodies_dir, plan.function.name, node)
            names.update(*(option.backends for option in plans.plans) if plans else ())
        elif planned.backend != HOST:
            names.add(planned.backend)
    return frozenset(names)


def _bodies_plan(variant: str, choice: Sequence[_BodyExecutable | None]) -> BodiesPlan:
    executables = [executable for executable in choice if executable]
    return BodiesPlan(
        variant,
        tuple(str(executable.path) if executable else "" for executable in choice),
        libraries=tuple(sorted(frozenset().union(*(item.libraries for item in executables)))),
        backends=tuple(sorted(frozenset().union(*(item.backends for item in executables)))),
        digest=hashlib.sha256(" ".join(item.digest for item in executables).encode()).hexdigest(),
    )


def _bodies_by_node(function: Function) -> list[tuple[int, list[Body]]]:
    ordered = sorted(function.bodies, key=lambda body: body.node)
    return [(node, list(bodies)) for node, bodies in groupby(ordered, lambda body: body.node)]


def _whole_note(function: Function, node: int, error: CollageError) -> str:
    op = function.graph.nodes[node]
    reason = mask_numbers(error.reason.splitlines()[0])
    return f"{op.name} ({op.op}) stays whole: its body has no plan of its own: {reason}"

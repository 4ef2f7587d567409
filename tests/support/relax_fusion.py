"""Fusion groups of TVM's own pass on a function, in terms of the function's nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from collage.frontend.model import Function
from collage.frontend.region import region_relax
from collage.frontend.relax_ir import calls

PREFIX, CALL = "call_", "relax.call_tir"


@dataclass(frozen=True)
class FusedGroup:
    """One group of the pass.

    Attributes:
        nodes: the nodes with a call in the group.
        is_cutting: whether a node, a composite operator, has further calls in other groups.
    """

    nodes: frozenset[int]
    is_cutting: bool


def relax_fusion_groups(function: Function) -> list[FusedGroup]:
    """Run LegalizeOps, AnnotateTIROpPattern and FuseOps on all nodes; return the groups."""
    owners = [
        index
        for index, node in enumerate(function.relax_nodes)
        for _ in calls(node.function)
    ]  # fmt: skip
    module = region_relax(function, function.graph.everything)
    for step in (relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()):
        module = step(module)
    numbered, count = _number_calls(module)
    assert count == len(owners), "a call was lowered to several functions"
    fused = relax.transform.FuseOps()(numbered)
    groups = [
        group
        for name, body in fused.functions.items()
        if isinstance(body, relax.Function)
        for group in _call_groups(name.name_hint == "main", body)
    ]
    assert sorted(number for group in groups for number in group) == list(range(len(owners)))
    return [_group(group, owners) for group in groups]


def _call_groups(is_main: bool, body: relax.Function) -> list[list[int]]:
    """Return the numbers of the calls in a fused function; in the main function each call is a group."""
    numbers = [
        int(call.args[0].name_hint.removeprefix(PREFIX))
        for call in calls(body)
        if isinstance(call.op, tvm.ir.Op) and call.op.name == CALL
    ]
    return [[number] for number in numbers] if is_main else [numbers]


def _group(numbers: Sequence[int], owners: Sequence[int]) -> FusedGroup:
    nodes = frozenset(owners[number] for number in numbers)
    whole = sum(owner in nodes for owner in owners)
    return FusedGroup(nodes, is_cutting=len(numbers) < whole)


def _number_calls(module: tvm.IRModule) -> tuple[tvm.IRModule, int]:
    """Return the module with a function of its own for every call, named by the call's number."""
    numbering = _NumberCalls(module)
    main = numbering.visit_expr(module["main"])
    numbered = numbering.builder_.get()
    numbered["main"] = main
    return relax.transform.DeadCodeElimination(["main"])(numbered), numbering.count


@relax.expr_functor.mutator
class _NumberCalls(relax.expr_functor.PyExprMutator):
    """The pass drops the names of values, and keeps those of functions."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.count = 0

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        assert call.op.name == CALL, f"{call.op.name} has no lowering"
        name = f"{PREFIX}{self.count}"
        self.count += 1
        body = self.builder_.get()[call.args[0]].with_attr("global_symbol", name)
        lowered = self.builder_.add_func(body, name)
        return relax.Call(call.op, [lowered, *call.args[1:]], call.attrs, call.ty_args)

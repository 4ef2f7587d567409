"""The operator kind of every node, from TVM's analysis of its TIR.

All distinct nodes of a function are legalised in one module; a node's kind is the highest of its TIR
functions. Foreign nodes, and nodes without a legalisation, are opaque.
"""

import logging
from collections.abc import Sequence

import tvm
from tvm import relax

from collage.frontend.model import RelaxNode
from collage.frontend.onnxruntime_session import first_line
from collage.frontend.relax_ir import calls
from collage.graph.op_pattern import OpPatternKind

log = logging.getLogger(__name__)


def node_kinds(nodes: Sequence[RelaxNode | None]) -> list[OpPatternKind]:
    """Return the kind of each node, in order."""
    distinct: dict[int, relax.Function] = {}
    for node in nodes:
        if node:
            distinct[id(node.function)] = node.function
    kinds = _function_kinds(list(distinct.values()))
    by_function = dict(zip(distinct, kinds, strict=True))
    return [by_function[id(node.function)] if node else OpPatternKind.OPAQUE for node in nodes]


def _function_kinds(functions: Sequence[relax.Function]) -> list[OpPatternKind]:
    module = _module(functions)
    try:
        module = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(module))
    except Exception as error:  # noqa: BLE001 - TVM's errors share no base class
        # A node without a legalisation must not affect the kinds of the others: analyse them one by one.
        if len(functions) == 1:
            log.debug("a node has no legalisation: %s: %s", type(error).__name__, first_line(error))
            return [OpPatternKind.OPAQUE]
        return [kind for function in functions for kind in _function_kinds([function])]
    return [_kind(module, module[f"node_{n}"]) for n in range(len(functions))]


def _module(functions: Sequence[relax.Function]) -> tvm.IRModule:
    return tvm.IRModule({
        f"node_{n}": relax.utils.copy_with_new_vars(function).with_attr(
            "global_symbol", f"node_{n}"
        )
        for n, function in enumerate(functions)
    })  # fmt: skip


def _kind(module: tvm.IRModule, function: relax.Function) -> OpPatternKind:
    highest = OpPatternKind.ELEMWISE
    for call in calls(function):
        kind = OpPatternKind.OPAQUE
        if call.args and isinstance(call.args[0], tvm.ir.GlobalVar):
            kind = OpPatternKind(int(module[call.args[0]].attrs["op_pattern"]))
        highest = max(highest, kind)
    return highest

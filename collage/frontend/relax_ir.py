"""Queries on Relax functions without control flow, and small changes of them."""

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from collage.graph.dataflow import TensorType


def build(params: Sequence[relax.Var], result: relax.Expr) -> relax.Function:
    """Make a function of `params` whose result is the nested expression `result`."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(output)
    return builder.get()["main"]


def relax_type(value: TensorType) -> "relax.TensorType":
    return relax.TensorType(value.shape, value.dtype)


def simplify(function: relax.Function) -> relax.Function | None:
    """Remove renamings; None for a malformed function."""
    function = function.without_attr("num_input").with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    module = relax.transform.CanonicalizeBindings()(module)
    module = relax.transform.DeadCodeElimination(["main"])(module)
    return module["main"] if relax.analysis.check_well_formed(module) else None


def bindings(function: relax.Function) -> list[relax.Binding]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def calls(function: relax.Function) -> list[relax.Call]:
    """Return the calls among the bindings."""
    return [item.value for item in bindings(function) if isinstance(item.value, relax.Call)]


def is_plain(function: relax.Function) -> bool:
    """Tell whether the body is a straight line of Relax operators on tensors of known types."""
    for binding in bindings(function):
        if not isinstance(binding, relax.VarBinding):
            return False
        value = binding.value
        if isinstance(value, relax.Call):
            if not isinstance(value.op, tvm.ir.Op) or value.op.name.startswith("relax.call_"):
                return False
            if not all(_is_leaf(item) for item in value.args):
                return False
        elif not isinstance(value, (relax.TupleGetItem, relax.Tuple, relax.Var)) and not _is_leaf(
            value
        ):
            return False
    return True


def _is_leaf(expr: relax.Expr) -> bool:
    if isinstance(expr, relax.Tuple):
        return all(_is_leaf(item) for item in expr.fields)
    return not isinstance(expr, (relax.Call, relax.Function, relax.SeqExpr, relax.If))


def result_types(function: relax.Function) -> list[TensorType | None]:
    """Return the types of the results; None for a result without static shape."""
    result = function.body.body.ty
    fields = result.fields if isinstance(result, relax.TupleType) else [result]
    return [static_type(item) for item in fields]


def static_type(item) -> TensorType | None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    shape = getattr(item, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape.values):
        return None
    return TensorType(tuple(int(dim) for dim in shape.values), str(item.dtype))


def substitute(expr: relax.Expr, new: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """Return `expr` (a binding's value) with variables replaced; types are left to the builder."""
    if isinstance(expr, relax.Var):
        return new[expr]
    if isinstance(expr, relax.Call):
        args = [substitute(item, new) for item in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(item, new) for item in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, new), expr.index)
    return expr

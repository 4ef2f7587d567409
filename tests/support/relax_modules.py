"""Relax modules of one function, made from an expression."""

from tvm import relax


def variable(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def module_of(params, result):
    """Make a module whose public function `main` returns the expression `result` of `params`."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(output)
    return builder.get()

"""Assemble the kernels of a plan into one Relax VM executable.

Each region of the plan becomes one call: to the C++ plug-in (`call_dps_packed` on an external
module, what `relax.transform.RunCodegen` leaves behind; a packed call that returns tensors where the shape
of a result depends on data), to a TIR function that was scheduled when
it was measured (`call_tir`), or to a view (`reshape`) for nodes that move no data. No fusion and no
schedule is chosen here: what was measured is what ships. Memory is planned statically by TVM's
default pipeline.

Complexity: linear in the number of regions; a region's kernel is compiled at most once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi
from tvm import relax

from collage.backends.base import CudaKernel, Kernel, PluginKernel, TirKernel
from collage.backends.tvm.target import host_target
from collage.errors import BackendError
from collage.frontend import Function
from collage.graph.dataflow import OpenType, TensorType
from collage.graph.index_set import IndexSet
from collage.runtime.plugin import load_plugin

CPU_ONLY = "executables are assembled for the CPU only so far"


@dataclass(frozen=True)
class PlannedKernel:
    """One region of a plan: `kernel` is None for a view (host)."""

    nodes: IndexSet
    backend: str
    kernel: Kernel | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class FunctionPlan:
    """A function with its kernels in an order in which they can run."""

    function: Function
    kernels: tuple[PlannedKernel, ...]


def kernel_symbol(function: str, position: int, backend: str) -> str:
    """Name the kernel of the region at `position` of a function's plan."""
    return f"collage_{function}_{position}_{backend}"


def assemble(plans: Sequence[FunctionPlan], threads: int, path: Path) -> None:
    """Write the executable of `plans` to `path` (a shared library).

    Args:
        plans: one a function; the first is `main`.
        threads: threads that native kernels may use.
        path: the file to write; its folder exists.

    Raises:
        BackendError: TVM or the linker refused the assembled module.
    """
    load_plugin()
    builder = relax.BlockBuilder()
    modules: list[tvm_ffi.Module] = []
    for plan in plans:
        _emit_function(builder, plan, modules)
    module = builder.get()
    if modules:
        module = module.with_attr("external_mods", modules)
    try:
        executable = tvm.compile(module, target=host_target(threads))
        executable.export_library(str(path))
    except Exception as error:
        raise BackendError(f"the plan could not be assembled: {_first_line(error)}") from error


def _emit_function(
    builder: relax.BlockBuilder, plan: FunctionPlan, modules: list[tvm_ffi.Module]
) -> None:
    function = plan.function
    graph = function.graph
    names = {value: f"v{position}" for position, value in enumerate(graph.inputs)}
    params = [relax.Var(names[value], _relax_type(graph.types[value])) for value in graph.inputs]
    environment: dict[str, relax.Expr] = dict(zip(graph.inputs, params, strict=True))
    with builder.function(function.name, params):
        with builder.dataflow():
            for position, planned in enumerate(plan.kernels):
                symbol = kernel_symbol(function.name, position, planned.backend)
                _emit_kernel(builder, function, planned, symbol, environment, modules)
            results = [_result(builder, function, value, environment) for value in graph.outputs]
            result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(result)


def _result(
    builder: relax.BlockBuilder,
    function: Function,
    value: str,
    environment: dict[str, relax.Expr],
) -> relax.Expr:
    if value in environment:
        return environment[value]
    return relax.const(tvm.runtime.tensor(function.weights[value]))


def _emit_kernel(
    builder: relax.BlockBuilder,
    function: Function,
    planned: PlannedKernel,
    symbol: str,
    environment: dict[str, relax.Expr],
    modules: list[tvm_ffi.Module],
) -> None:
    arguments = [environment[value] for value in planned.inputs]
    types = [_relax_type(function.type_of(value)) for value in planned.outputs]
    match planned.kernel:
        case None:
            shape = function.graph.types[planned.outputs[0]].shape
            call = relax.op.reshape(arguments[0], shape)
        case PluginKernel(kind, blob, allocates):
            modules.append(tvm_ffi.get_global_func("collage.create_module")(kind, symbol, blob))
            if allocates:
                made = types[0] if len(types) == 1 else relax.TupleType(types)
                call = relax.op.call_pure_packed(symbol, *arguments, ty_args=made)
            else:
                call = relax.op.call_dps_packed(symbol, relax.Tuple(arguments), out_ty=types)
        case CudaKernel() | TirKernel(device="cuda"):
            raise BackendError(f"the kernel of {planned.backend} needs a GPU: {CPU_ONLY}")
        case TirKernel(module, name, constants):
            body = module[name].with_attr("global_symbol", symbol)
            function_var = builder.add_func(body, symbol)
            weights = [relax.const(tvm.runtime.tensor(constant)) for constant in constants]
            call = relax.op.call_tir(function_var, relax.Tuple([*arguments, *weights]), types)
    variable = builder.emit(call)
    if len(planned.outputs) == 1:
        environment[planned.outputs[0]] = variable
        return
    for position, value in enumerate(planned.outputs):
        environment[value] = builder.emit(relax.TupleGetItem(variable, position))


def _relax_type(of: TensorType | OpenType) -> relax.TensorType:
    if isinstance(of, TensorType):
        return relax.TensorType(of.shape, of.dtype)
    return relax.TensorType(dtype=of.dtype, ndim=-1 if of.shape is None else len(of.shape))


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

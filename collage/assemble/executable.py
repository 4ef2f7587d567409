"""Assemble the kernels of a plan into one Relax VM executable.

Each region of the plan becomes one call: a call of the C++ plug-in (`call_dps_packed` on an external module,
the output form of `relax.transform.RunCodegen`; a packed call that returns tensors if the shape of a result
depends on data), of a TIR function with its measured schedule (`call_tir`), or a view (`reshape`) for nodes
that move no data. Assembly chooses no fusion and no schedule: the measured kernels ship. TVM's default
pipeline plans memory statically. The device of values (`values.Places`) is the only difference between the
CPU and a GPU (`assemble.gpu`).

Complexity: linear in the number of regions; a region's kernel is compiled at most once.
"""

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import tvm
import tvm_ffi
from tvm import relax

from collage.assemble.function_plan import FunctionPlan, PlannedKernel
from collage.assemble.gpu import DevicePlaces, GpuPlaces, graph_capturable
from collage.assemble.shared_weights import WeightTable, link_weights
from collage.assemble.values import Places
from collage.backends.base import CudaKernel, PluginKernel, TirKernel
from collage.backends.common.c_compiler import PROTECTED
from collage.backends.common.tvm.target import host_target
from collage.backends.nvidia.tvm_cuda.executable import compile_for_gpu
from collage.errors import BackendError
from collage.graph.index_set import first
from collage.runtime.plugin import load_plugin
from collage.runtime.target import Target

_FULL_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|File size limit exceeded"
)
"""Messages of compilers and linkers for a full disk; their exit codes do not tell it."""


def assemble(
    plans: Sequence[FunctionPlan],
    threads: int,
    path: Path,
    device: Target = Target.CPU,
    *,
    graphs: bool = True,
) -> None:
    """Write the executable of `plans` to `path` (a shared library).

    Args:
        plans: plans, one per function; the first is `main`.
        threads: number of threads of native kernels.
        path: file to write, in an existing folder.
        device: device of the kernels, default the processor.
        graphs: whether kernels on a GPU are captured in CUDA graphs if all of them allow it; default True.

    Raises:
        BackendError: TVM or the linker refused the assembled module.
        OSError: the disk is full.
    """
    load_plugin()
    builder = relax.BlockBuilder()
    callees = Callees()
    table = WeightTable()
    if len(plans) > 1 and not device.is_gpu:
        plans, table = link_weights(plans)
    try:
        for plan in plans:
            for places in _places(builder, plan, threads, device):
                emit_function(builder, plan, callees, places)
        module = builder.get()
        if callees.modules:
            module = module.with_attr("external_mods", list(callees.modules.values()))
        if device.is_gpu:
            executable = compile_for_gpu(module, threads, graphs and graph_capturable(plans))
        else:
            executable = tvm.compile(module, target=host_target(threads))
        with TemporaryDirectory(dir=path.parent) as objects:
            addons = [str(table.write_source(Path(objects)))] if table.weights else []
            executable.export_library(
                str(path), workspace_dir=objects, options=list(PROTECTED), addons=addons
            )
    except (OSError, BackendError):
        raise
    except Exception as error:  # TVM's and the linker's share no base class
        if full := _FULL_DISK.search(str(error)):
            raise OSError(errno.ENOSPC, full.group(), str(path)) from error
        raise BackendError(f"the plan could not be assembled: {_cause(error)}") from error


def _places(
    builder: relax.BlockBuilder, plan: FunctionPlan, threads: int, device: Target
) -> list[Places]:
    """Return the values of the function, once per form of the function in the executable."""
    if not device.takes_device_tensors:
        return [Places(builder, plan.function)]

    return [kind(builder, plan.function, threads) for kind in (GpuPlaces, DevicePlaces)]


@dataclass
class Callees:
    """Callees of an executable by symbol: made once, called from several functions."""

    modules: dict[str, tvm_ffi.Module] = field(default_factory=dict)
    natives: dict[str, tuple[relax.GlobalVar, list[relax.Expr]]] = field(default_factory=dict)
    """TIR functions with their constants."""


def emit_function(
    builder: relax.BlockBuilder, plan: FunctionPlan, callees: Callees, places: Places
) -> None:
    """Emit the calls of one function; add their callees to `callees`."""
    function = plan.function
    inputs = function.graph.inputs
    params = [
        relax.Var(f"v{position}", places.param_type(value)) for position, value in enumerate(inputs)
    ]
    with builder.function(places.name, params):
        with builder.dataflow():
            for value, param in zip(inputs, params, strict=True):
                places.enter(value, param)
            for symbol, planned in zip(plan.symbols, plan.kernels, strict=True):
                _emit_kernel(planned, symbol, places, callees)
            results = [places.result(value) for value in function.graph.outputs]
            result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(result)


def _emit_kernel(planned: PlannedKernel, symbol: str, places: Places, callees: Callees) -> None:
    builder = places.builder
    arguments = [places.argument(value) for value in planned.inputs]
    types = [places.type_of(value) for value in planned.outputs]
    match places.plugin_kernel(planned):
        case None:
            shape = places.function.graph.types[planned.outputs[0]].shape
            call = relax.op.reshape(arguments[0] if arguments else _weight(planned, places), shape)
        case PluginKernel(kind, blob, allocates):
            if symbol not in callees.modules:
                create = tvm_ffi.get_global_func("collage.create_module")
                callees.modules[symbol] = create(kind, symbol, blob)
            if allocates:
                result_type = types[0] if len(types) == 1 else relax.TupleType(types)
                call = relax.op.call_pure_packed(symbol, *arguments, ty_args=result_type)
            else:
                call = relax.op.call_dps_packed(symbol, relax.Tuple(arguments), out_ty=types)
        case TirKernel(module, name, constants):
            if symbol not in callees.natives:
                body = module[name].with_attr("global_symbol", symbol)
                weights = [relax.const(tvm.runtime.tensor(constant)) for constant in constants]
                callees.natives[symbol] = builder.add_func(body, symbol), weights
            native, weights = callees.natives[symbol]
            call = relax.op.call_tir(native, relax.Tuple([*arguments, *weights]), types)
        case CudaKernel():
            raise BackendError(f"the kernel of {planned.backend} needs a GPU: add --device cuda")
    variable = builder.emit(call)
    if len(planned.outputs) == 1:
        places.define(planned.outputs[0], variable)
        return
    for position, value in enumerate(planned.outputs):
        places.define(value, builder.emit(relax.TupleGetItem(variable, position)))


def _weight(view: PlannedKernel, places: Places) -> relax.Expr:
    """Return the weight that a view without an input reads."""
    function = places.function
    node = function.graph.nodes[first(view.nodes)]
    return relax.const(tvm.runtime.tensor(function.weights[node.inputs[0]]))


def _cause(error: Exception) -> str:
    """Return the first line with an error of a compiler, else the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if " error: " in line]
    return [*errors, *lines[::-1], type(error).__name__][0]

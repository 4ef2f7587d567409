"""Assemble the kernels of a plan into one Relax VM executable.

Each region of the plan becomes one call: to the C++ plug-in (`call_dps_packed` on an external
module, what `relax.transform.RunCodegen` leaves behind; a packed call that returns tensors where the shape
of a result depends on data), to a TIR function that was scheduled when
it was measured (`call_tir`), or to a view (`reshape`) for nodes that move no data. No fusion and no
schedule is chosen here: what was measured is what ships. Memory is planned statically by TVM's
default pipeline. Where the values of kernels are (`Places`) is the only difference between the CPU and a
GPU (`assemble.gpu`).

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

from collage.backends.base import CudaKernel, Kernel, PluginKernel, TirKernel
from collage.backends.common.c_source import PROTECTED
from collage.backends.common.tvm.target import host_target
from collage.errors import BackendError
from collage.frontend import Function
from collage.graph.dataflow import OpenType, TensorType
from collage.graph.index_set import IndexSet
from collage.runtime.plugin import load_plugin

_FULL_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|File size limit exceeded"
)
"""What a compiler or linker writes before it ends with its own exit code."""


@dataclass(frozen=True)
class PlannedKernel:
    """One region of a plan: `kernel` is None for a view (host)."""

    nodes: IndexSet
    backend: str
    kernel: Kernel | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: str = ""
    """Symbol of a kernel that several functions call, with one copy of its weights; "" for one of its own."""


@dataclass(frozen=True)
class FunctionPlan:
    """A function with its kernels in an order in which they can run."""

    function: Function
    kernels: tuple[PlannedKernel, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the kernels in the executable, by position."""
        return tuple(
            planned.shared or kernel_symbol(self.function.name, position, planned.backend)
            for position, planned in enumerate(self.kernels)
        )


def kernel_symbol(function: str, position: int, backend: str) -> str:
    """Name the kernel of the region at `position` of a function's plan: an identifier of C."""
    return re.sub(r"\W", "_", f"collage_{function}_{position}_{backend}")


class Places:
    """Where the values of one function are while it is emitted: all of them on the host."""

    def __init__(self, builder: relax.BlockBuilder, function: Function) -> None:
        self.builder = builder
        self.function = function
        self.known: dict[str, relax.Expr] = {}

    @property
    def name(self) -> str:
        """What the function is called in the executable."""
        return self.function.name

    def type_of(self, value: str) -> relax.TensorType:
        """Return the type of a kernel's result."""
        return relax_type(self.function.type_of(value))

    def param_type(self, value: str) -> relax.TensorType:
        """Return the type of the function's input."""
        return self.type_of(value)

    def enter(self, value: str, param: relax.Var) -> None:
        """Bind the function's input."""
        self.known[value] = param

    def define(self, value: str, made: relax.Expr) -> None:
        """Bind the result of a kernel."""
        self.known[value] = made

    def argument(self, value: str) -> relax.Expr:
        """Return the value where kernels read it."""
        return self.known[value]

    def result(self, value: str) -> relax.Expr:
        """Return the value where the function returns it."""
        if value in self.known:
            return self.known[value]
        return relax.const(tvm.runtime.tensor(self.function.weights[value]))

    def plugin_kernel(self, planned: "PlannedKernel") -> Kernel | None:
        """Return the kernel in the form in which it ships."""
        return planned.kernel


def assemble(
    plans: Sequence[FunctionPlan],
    threads: int,
    path: Path,
    device: str = "cpu",
    graphs: bool = True,
) -> None:
    """Write the executable of `plans` to `path` (a shared library).

    Args:
        plans: one a function; the first is `main`.
        threads: threads that native kernels may use.
        path: the file to write; its folder exists.
        device: where kernels run, one of `collage.options.DEVICES`.
        graphs: on a GPU, capture kernels in CUDA graphs where all of them allow it.

    Raises:
        BackendError: TVM or the linker refused the assembled module.
        OSError: the disk is full.
    """
    load_plugin()
    builder = relax.BlockBuilder()
    callees = Callees()
    try:
        for plan in plans:
            for places in _places(builder, plan, threads, device):
                emit_function(builder, plan, callees, places)
        module = builder.get()
        if callees.modules:
            module = module.with_attr("external_mods", list(callees.modules.values()))
        if device == "cpu":
            executable = tvm.compile(module, target=host_target(threads))
        else:
            from collage.assemble.gpu import captures
            from collage.backends.nvidia.tvm_cuda.executable import compile_for_gpu

            executable = compile_for_gpu(module, threads, graphs and captures(plans))
        with TemporaryDirectory(dir=path.parent) as objects:
            executable.export_library(str(path), workspace_dir=objects, options=list(PROTECTED))
    except (OSError, BackendError):
        raise
    except Exception as error:  # TVM's and the linker's share no base class
        if full := _FULL_DISK.search(str(error)):
            raise OSError(errno.ENOSPC, full.group(), str(path)) from error
        raise BackendError(f"the plan could not be assembled: {_cause(error)}") from error


def _places(
    builder: relax.BlockBuilder, plan: FunctionPlan, threads: int, device: str
) -> list[Places]:
    """Return every way in which the function is to be in the executable."""
    if device == "cpu":
        return [Places(builder, plan.function)]
    from collage.assemble.gpu import DevicePlaces, GpuPlaces

    return [one(builder, plan.function, threads) for one in (GpuPlaces, DevicePlaces)]


@dataclass
class Callees:
    """What the calls of an executable refer to, by symbol: made once, called from several functions."""

    modules: dict[str, tvm_ffi.Module] = field(default_factory=dict)
    natives: dict[str, tuple[relax.GlobalVar, list[relax.Expr]]] = field(default_factory=dict)
    """TIR functions with their constants."""


def emit_function(
    builder: relax.BlockBuilder, plan: FunctionPlan, callees: Callees, places: Places
) -> None:
    """Emit the calls of one function; what they need is added to `callees`."""
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
            call = relax.op.reshape(arguments[0], shape)
        case PluginKernel(kind, blob, allocates):
            if symbol not in callees.modules:
                create = tvm_ffi.get_global_func("collage.create_module")
                callees.modules[symbol] = create(kind, symbol, blob)
            if allocates:
                made = types[0] if len(types) == 1 else relax.TupleType(types)
                call = relax.op.call_pure_packed(symbol, *arguments, ty_args=made)
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


def relax_type(of: TensorType | OpenType, device: object = None) -> relax.TensorType:
    """Return the type of a tensor, on a device where one is named."""
    if isinstance(of, TensorType):
        return relax.TensorType(of.shape, of.dtype, vdevice=device)
    return relax.TensorType(dtype=of.dtype, ndim=-1 if of.shape is None else len(of.shape))


def _cause(error: Exception) -> str:
    """The first line that a compiler calls an error, else the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if " error: " in line]
    return [*errors, *lines[::-1], type(error).__name__][0]

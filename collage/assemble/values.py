"""Values of a function while it is emitted as Relax: their types, and their device."""

import tvm
from tvm import relax

from collage.assemble.function_plan import PlannedKernel
from collage.backends.base import Kernel
from collage.frontend import Function
from collage.graph.dataflow import OpenType, TensorType


class Places:
    """Values of one function while it is emitted: all of them are on the host."""

    def __init__(self, builder: relax.BlockBuilder, function: Function) -> None:
        self.builder = builder
        self.function = function
        self.known: dict[str, relax.Expr] = {}

    @property
    def name(self) -> str:
        """Name of the function in the executable."""
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

    def define(self, value: str, result: relax.Expr) -> None:
        """Bind the result of a kernel."""
        self.known[value] = result

    def argument(self, value: str) -> relax.Expr:
        """Return the value as an argument of a kernel."""
        return self.known[value]

    def result(self, value: str) -> relax.Expr:
        """Return the value as a result of the function."""
        if value in self.known:
            return self.known[value]
        return relax.const(tvm.runtime.tensor(self.function.weights[value]))

    def plugin_kernel(self, planned: PlannedKernel) -> Kernel | None:
        """Return the kernel in the form of the executable."""
        return planned.kernel


def relax_type(tensor: TensorType | OpenType, device: object = None) -> relax.TensorType:
    """Return the type of a tensor, on `device` unless that is None."""
    if isinstance(tensor, TensorType):
        return relax.TensorType(tensor.shape, tensor.dtype, vdevice=device)
    return relax.TensorType(
        dtype=tensor.dtype, ndim=-1 if tensor.shape is None else len(tensor.shape)
    )

"""A function with the kernels of a plan: the input of assembly."""

import re
from dataclasses import dataclass

from collage.backends.base import Kernel
from collage.frontend import Function
from collage.graph.index_set import IndexSet


@dataclass(frozen=True)
class PlannedKernel:
    """One region of a plan.

    Attributes:
        nodes: nodes of the region.
        backend: name of the backend.
        kernel: kernel of the region; None for a view (host).
        inputs: names of the input values.
        outputs: names of the output values.
        shared: symbol of a kernel that several functions call with one copy of its weights; "" for a
            kernel of one function.
    """

    nodes: IndexSet
    backend: str
    kernel: Kernel | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: str = ""


@dataclass(frozen=True)
class FunctionPlan:
    """A function with its kernels in execution order."""

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

"""An assembled plan, as a benchmark target of the gate."""

from dataclasses import dataclass
from pathlib import Path

from collage.frontend import Function
from collage.runtime.manifest import Signature, Tensor


@dataclass(frozen=True)
class PlanExecutable:
    """An assembled plan: `single` names the one backend it uses, "" for a mix."""

    name: str
    path: Path
    predicted_s: float
    single: str = ""
    reduced: bool = False
    device: str = "cpu"
    """What it was assembled for."""
    original: str = ""
    """The baseline as which it runs the original file; "" for a plan of regions."""
    kernel: str = ""
    """Symbol of the one kernel that is all of it, where it is called without the virtual machine."""


def function_signature(function: Function, kernel: str = "") -> Signature:
    """Return the names, shapes and dtypes with which an executable's function is called."""
    graph = function.graph
    inputs, outputs = (
        tuple(_tensor(function, name) for name in names) for names in (graph.inputs, graph.outputs)
    )
    return Signature(function.name, inputs, outputs, kernel)


def _tensor(function: Function, name: str) -> Tensor:
    tensor = function.type_of(name)
    return Tensor(name, tensor.shape, tensor.dtype)

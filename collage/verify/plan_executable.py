"""An assembled plan for the gate."""

from dataclasses import dataclass
from pathlib import Path

from collage.frontend import Function
from collage.runtime.manifest import Signature, Tensor
from collage.runtime.target import Target


@dataclass(frozen=True)
class PlanExecutable:
    """An assembled plan.

    Attributes:
        name: unique name of the plan.
        path: file of the executable.
        predicted_s: predicted latency, in seconds.
        single: name of the only backend, "" for a mix.
        reduced: whether a region computes in less than float32.
        device: device of the executable, default the processor.
        original: baseline whose framework runs the original file; "" for a plan of regions.
        kernel: symbol of the only kernel, if it is called without the virtual machine; else "".
    """

    name: str
    path: Path
    predicted_s: float
    single: str = ""
    reduced: bool = False
    device: Target = Target.CPU
    original: str = ""
    kernel: str = ""


def function_signature(function: Function, kernel: str = "") -> Signature:
    """Return the names, shapes and dtypes of an executable's function."""
    graph = function.graph
    inputs, outputs = (
        tuple(_tensor(function, name) for name in names) for names in (graph.inputs, graph.outputs)
    )
    return Signature(function.name, inputs, outputs, kernel)


def _tensor(function: Function, name: str) -> Tensor:
    tensor = function.type_of(name)
    return Tensor(name, tensor.shape, tensor.dtype)

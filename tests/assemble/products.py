"""Executables of a chain of products, one kernel a function, for tests of what functions share."""

from collections.abc import Sequence
from pathlib import Path

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import BuildContext
from collage.backends.registry import available_backends
from collage.frontend.importer import import_model
from collage.frontend.model import Function, Model
from collage.frontend.region import region_values
from collage.runtime.session import ExecutableSession
from collage.verify.plan_executable import function_signature


def imported(file: Path, width: int, rows: Sequence[int], folder: Path) -> Model:
    """Import the model with a function for each number of rows."""
    return import_model(
        file, shapes=[{"x": (number, width)} for number in rows], work_dir=folder / "work"
    )


def whole_plan(function: Function, backend_name: str) -> FunctionPlan:
    """Return the plan with one kernel."""
    (backend,) = available_backends((backend_name,))
    nodes = function.graph.everything
    kernel = backend.compile(function, nodes, BuildContext(1))
    planned = PlannedKernel(nodes, backend_name, kernel, *region_values(function, nodes))
    return FunctionPlan(function, (planned,))


def build(functions: Sequence[Function], backend_name: str, file: Path) -> Path:
    """Assemble the functions into one executable."""
    assemble([whole_plan(function, backend_name) for function in functions], 1, file)
    return file


def opened(file: Path, functions: Sequence[Function]) -> ExecutableSession:
    """Open the functions of an executable."""
    return ExecutableSession(file, tuple(map(function_signature, functions)), 1)

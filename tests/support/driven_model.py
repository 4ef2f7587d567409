"""Executables in which the plug-in drives control flow, built without any measurement.

Each control-flow node with bodies is one kernel of `control_flow`; each other node is a kernel of TVM, or of
ONNX Runtime where TVM has none.
"""

from pathlib import Path

import numpy as np
import onnxruntime

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Backend, BuildContext
from collage.backends.cpu.control_flow import ControlFlowBackend
from collage.backends.cpu.control_flow.body_plans import (
    BodiesPlan,
    NodePlans,
    PlannedBody,
    write_plans,
)
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.backends.cpu.tvm import TvmBackend
from collage.frontend import Function
from collage.frontend.importer import import_model
from collage.frontend.model import Body
from collage.frontend.region import region_values
from collage.graph.dynamic_shape_groups import contract_groups, group_parts
from collage.graph.index_set import first, index_set, indices
from collage.runtime.session import ExecutableSession
from collage.verify.plan_executable import function_signature
from tests.support.control_flow_models import write_model


class DrivenModel:
    """A model beside its original: both answer the same inputs."""

    def __init__(self, text: str, folder: Path) -> None:
        path = write_model(text, folder / "model.onnx")
        self.original = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.model = import_model(path, work_dir=folder / "work")
        self.folder = folder
        self.function = self.model.functions[0]
        executable = build_function(self.function, folder)
        self.session = ExecutableSession(executable, (function_signature(self.function),), 1)

    def run(self, **feeds: np.ndarray) -> dict[str, np.ndarray]:
        """Run the executable; its outputs have the original's names."""
        outputs = self.session.run(feeds)
        return dict(zip(self.output_names, outputs.values(), strict=True))

    def check(self, **feeds: np.ndarray) -> dict[str, np.ndarray]:
        """Compare the executable with ONNX Runtime, and return its outputs."""
        outputs = self.run(**feeds)
        expected = dict(zip(self.output_names, self.original.run(None, feeds), strict=True))
        for name, value in expected.items():
            assert outputs[name].shape == value.shape, name
            assert outputs[name].dtype == value.dtype, name
            np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)
        return outputs

    @property
    def output_names(self) -> list[str]:
        return [value.name for value in self.original.get_outputs()]


def build_function(function: Function, folder: Path) -> Path:
    """Write the executable of a function and of its bodies; return the function's."""
    plan_bodies(function, folder)
    path = folder / f"{function.name}.so"
    assemble([FunctionPlan(function, planned_kernels(function, folder))], 1, path)
    return path


def plan_bodies(function: Function, folder: Path) -> None:
    """Write the plans of all control-flow nodes of a function."""
    for node in sorted({body.node for body in function.bodies}):
        bodies = [body for body in function.bodies if body.node == node]
        executables = tuple(
            str(build_function(body.function, folder)) if body.function.graph.nodes else ""
            for body in bodies
        )
        plan = BodiesPlan(
            "",
            executables,
            libraries=("onnxruntime",),
            backends=("onnxruntime", "tvm"),
            digest="digest",
        )
        write_plans(
            NodePlans(function.name, node, tuple(map(_planned_body, bodies)), (plan,)),
            folder / "bodies",
        )


def _planned_body(body: Body) -> PlannedBody:
    simplified = str(body.function.simplified)
    return PlannedBody(body.function.name, body.attribute, simplified, body.results)


def planned_kernels(function: Function, folder: Path) -> tuple[PlannedKernel, ...]:
    """Return one kernel for each node, or for each group of nodes with a value of unknown shape."""
    context = BuildContext(1, bodies_dir=folder / "bodies")
    kernels = []
    for nodes in _regions(function):
        inputs, outputs = region_values(function, nodes)
        backend = _backend(function, nodes, folder)
        kernel = backend.compile(function, nodes, context, backend.variants[0])
        kernels.append(PlannedKernel(nodes, backend.name, kernel, inputs, outputs=outputs))
    return tuple(kernels)


def _regions(function: Function) -> list[int]:
    """Return single nodes, groups without driven nodes, and the parts of the others, in order."""
    graph = function.graph
    driven = index_set(body.node for body in function.bodies)
    _, members = contract_groups(graph)
    regions = [nodes for nodes in members if nodes.bit_count() == 1 or not nodes & driven]
    inside = [1 << node for node in indices(driven) if 1 << node not in regions]
    return sorted([*regions, *inside, *group_parts(graph, driven)], key=first)


def _backend(function: Function, nodes: int, folder: Path) -> Backend:
    node = nodes.bit_length() - 1
    for backend in (ControlFlowBackend(folder / "bodies", function.name), TvmBackend()):
        if nodes == 1 << node and backend.unsupported(function, node) is None:
            return backend
    return OnnxRuntimeBackend()

"""The blob of a control-flow kernel: `native/control_flow/{body.h,branch.cc,loop.cc}` read it."""

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np

from collage.backends.cpu.control_flow.body_plans import BodiesPlan, NodePlans, PlannedBody
from collage.errors import BackendError
from collage.frontend.load_function import load_function
from collage.frontend.model import Function
from collage.frontend.onnx_attributes import node_attributes
from collage.frontend.region import region_values
from collage.graph.dynamic_shape_groups import passes_on_dynamic_shape
from collage.runtime.blob import Json, pack

Pair = list[int]


class ValueKind(IntEnum):
    """Kinds of the kernel's values (`ValueKind` in native/control_flow/body.h)."""

    ARGUMENT = 0
    CONSTANT = 1
    OWN = 2
    OUTPUT = 3


@dataclass
class _LoadedBody:
    """A body's function with the number of its own inputs."""

    planned: PlannedBody
    function: Function
    own: int

    def result_type(self, position: int) -> dict[str, Json]:
        tensor = self.function.graph.types[self.planned.results[position]]
        return {"dtype": tensor.dtype, "shape": list(tensor.shape)}

    def shape_of(self, position: int) -> list[Json]:
        """Return the shape of one of the body's own inputs."""
        return list(self.function.graph.types[self.function.graph.inputs[position]].shape)


@dataclass
class BlobBuilder:
    """Builds the blob of one node's kernel."""

    function: Function
    node: int
    tensors: list[np.ndarray] = field(default_factory=list)
    images: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._inputs, self._outputs = region_values(self.function, 1 << self.node)
        self._proto = self.function.onnx_nodes[self.node]
        self._attributes = node_attributes(self.function, self.node)
        self._constants: dict[str, int] = {}

    @property
    def allocates(self) -> bool:
        """Whether an output's shape depends on the number of turns."""
        return passes_on_dynamic_shape(self.function.graph, 1 << self.node)

    def build(self, plans: NodePlans, plan: BodiesPlan) -> tuple[str, bytes]:
        """Return the kernel's kind and its blob.

        Raises:
            BackendError: the node is not as the plans say.
        """
        bodies = [self._load(body) for body in plans.bodies]
        is_branch = self._proto.op_type == "If"
        header: dict[str, Json] = {"arguments": len(self._inputs)}
        header |= self._branch_entries() if is_branch else self._loop_entries(bodies[0])
        header["bodies"] = [
            self._body(body, file) for body, file in zip(bodies, plan.executables, strict=True)
        ]
        header["images"] = list(self.images)
        return "branch" if is_branch else "loop", pack(header, self.tensors)

    def _load(self, planned: PlannedBody) -> _LoadedBody:
        graphs = [item.g for item in self._proto.attribute if item.name == planned.attribute]
        if len(graphs) != 1:
            raise BackendError(f"node {self.node} has no body {planned.attribute!r}")
        function = load_function(Path(planned.simplified), planned.name)
        return _LoadedBody(planned, function, len(graphs[0].input))

    def _branch_entries(self) -> dict[str, Json]:
        outputs = list(self._proto.output)
        return {
            "condition": self._value(self._proto.input[0]),
            "outputs": [outputs.index(name) for name in self._outputs],
        }

    def _loop_entries(self, body: _LoadedBody) -> dict[str, Json]:
        is_loop = self._proto.op_type == "Loop"
        operands, outputs = list(self._proto.input), list(self._proto.output)
        header: dict[str, Json] = {
            "is_loop": int(is_loop),
            "outputs": [outputs.index(name) for name in self._outputs],
            "allocates": int(self.allocates),
        }
        if is_loop:
            names = dict(zip(("trips", "condition"), operands, strict=False))
            header |= {key: self._value(name) for key, name in names.items() if name}
            header |= {"iteration": body.shape_of(0), "truth": body.shape_of(1)}
            states, slices = operands[2:], []
        else:
            count = self._attributes.integer("num_scan_inputs", 0)
            states, slices = operands[:-count], operands[-count:]
        header["states"] = [{"value": self._value(name)} for name in states]
        header["slices"] = self._slices(slices)
        header["rows"] = self._rows(body, is_loop + len(states))
        return header

    def _slices(self, names: list[str]) -> list[Json]:
        axes = self._attributes.integers("scan_input_axes", ()) or (0,) * len(names)
        directions = self._attributes.integers("scan_input_directions", ()) or (0,) * len(names)
        entries: list[Json] = []
        for name, axis, direction in zip(names, axes, directions, strict=True):
            rank = len(self.function.graph.types[name].shape)
            entries.append(
                {"value": self._value(name), "axis": axis % rank, "backwards": direction}
            )
        return entries

    def _rows(self, body: _LoadedBody, first: int) -> list[Json]:
        count = len(body.planned.results) - first
        axes = self._attributes.integers("scan_output_axes", ()) or (0,) * count
        directions = self._attributes.integers("scan_output_directions", ()) or (0,) * count
        entries: list[Json] = []
        for position, axis, direction in zip(
            range(first, first + count), axes, directions, strict=True
        ):
            row = body.result_type(position)
            rank = len(body.function.graph.types[body.planned.results[position]].shape) + 1
            entries.append({**row, "axis": axis % rank, "backwards": direction})
        return entries

    def _body(self, body: _LoadedBody, executable: str) -> dict[str, Json]:
        graph = body.function.graph
        image = -1
        if executable:
            image = self._add(np.frombuffer(Path(executable).read_bytes(), np.uint8))
            self.images.append(image)
        inputs = [self._body_input(body, position) for position in range(len(graph.inputs))]
        return {
            "image": image,
            "function": body.function.name,
            "inputs": list(inputs),
            "results": [self._result(body, name, inputs) for name in body.planned.results],
            "outputs": len(graph.outputs),
        }

    def _body_input(self, body: _LoadedBody, position: int) -> Pair:
        if position < body.own:
            return [ValueKind.OWN, position]
        return self._value(body.function.graph.inputs[position])

    def _result(self, body: _LoadedBody, name: str, inputs: list[Pair]) -> Pair:
        graph = body.function.graph
        if name in graph.outputs:
            return [ValueKind.OUTPUT, graph.outputs.index(name)]
        if name in graph.inputs:
            return inputs[graph.inputs.index(name)]
        return [ValueKind.CONSTANT, self._add(body.function.weights[name])]

    def _value(self, name: str) -> Pair:
        """Return a value of the caller: an input of the kernel, or a constant of the blob."""
        if name in self._inputs:
            return [ValueKind.ARGUMENT, self._inputs.index(name)]
        if name not in self.function.weights:
            raise BackendError(f"{name!r} is no value that reaches node {self.node}")
        if name not in self._constants:
            self._constants[name] = self._add(self.function.weights[name])
        return [ValueKind.CONSTANT, self._constants[name]]

    def _add(self, tensor: np.ndarray) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

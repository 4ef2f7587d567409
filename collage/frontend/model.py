"""The imported model: functions whose graph nodes correspond one to one to ONNX nodes.

`DataflowGraph.nodes[i]` is `Function.onnx_nodes[i]`. `Function.relax_nodes[i]` is its Relax form: a
function of one Relax op, a function of several (a composite op), or None (a foreign op, for backends
with ONNX input only). Relax nodes are converted on first access, so a worker for ONNX regions never
loads TVM.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from collage.frontend.digest import RegionDigests
from collage.frontend.onnx_proto import open_type
from collage.frontend.random_operators import drawing_nodes, drawn_values
from collage.graph.dataflow import DataflowGraph, OpenType, TensorType
from collage.graph.index_set import IndexSet
from collage.runtime.function_names import MAIN

if TYPE_CHECKING:
    from tvm import relax


@dataclass(frozen=True)
class RelaxNode:
    """A node in Relax.

    Attributes:
        function: Relax function; several outputs are a tuple.
        operands: value names of its parameters, weights included, each once. Small constants for shapes
            are inlined, so these may be fewer than the ONNX operands.
        composite: True for several Relax ops.
    """

    function: "relax.Function"
    operands: tuple[str, ...]
    composite: bool


@dataclass(frozen=True)
class Function:
    """A function of the model, partitioned on its own: one shape set, or a body of control flow.

    Attributes:
        weights: constant values by name, as read-only arrays.
        opsets: version of every operator set in use; "" is the standard one.
        simplified: path of the folded, shape-bound ONNX file of this function, for workers.
        value_types: ONNX type of every value, without data-dependent shapes.
        sample_sets: the user's sample sets of this function: arrays by input name; an input without a
            value is generated. Not in the simplified file.
        settings: the user's literal values by input name, for sample sets and generated inputs.
        origin: SHA-256 of the model's original files, where there are samples; "" without.
        caller_samples: `sample_digest` of the function that this body belongs to; "" for other functions.
        bodies: bodies of the control-flow nodes, where they are functions (`frontend.bodies`).
    """

    name: str
    graph: DataflowGraph
    onnx_nodes: tuple[onnx.NodeProto, ...]
    relax_nodes: Sequence[RelaxNode | None]
    weights: Mapping[str, np.ndarray]
    opsets: Mapping[str, int]
    ir_version: int
    simplified: Path
    value_types: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    sample_sets: Sequence[Mapping[str, np.ndarray]] = ()
    settings: Mapping[str, np.ndarray] = field(default_factory=dict)
    origin: str = ""
    caller_samples: str = ""
    bodies: tuple["Body", ...] = ()

    def type_of(self, value: str) -> TensorType | OpenType:
        """Return the static type of a tensor, or an open type for a data-dependent shape."""
        static_type = self.graph.types.get(value)
        return static_type or open_type(self.value_types.get(value, onnx.TypeProto()))

    @property
    def has_samples(self) -> bool:
        """Tell whether the user gave values of inputs, of this function or of a body's caller."""
        return bool(self.sample_sets or self.settings or self.caller_samples)

    @cached_property
    def sample_digest(self) -> str:
        """SHA-256 of the model and of the measured values: the first set and the settings; "" without.

        A body is measured on values that come from its caller's.
        """
        if self.caller_samples:
            return self.caller_samples
        measured = {**(self.sample_sets[0] if self.sample_sets else {}), **self.settings}
        digest = hashlib.sha256(self.origin.encode())
        for name, array in sorted(measured.items()):
            digest.update(f"{name} {array.dtype}{list(array.shape)}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest() if measured else ""

    @cached_property
    def drawing(self) -> IndexSet:
        """Nodes that draw random numbers."""
        return drawing_nodes(self)

    @cached_property
    def drawn_outputs(self) -> frozenset[str]:
        """Outputs of the function that depend on a draw."""
        return drawn_values(self.graph, self.drawing) & frozenset(self.graph.outputs)

    @cached_property
    def digests(self) -> RegionDigests:
        return RegionDigests(
            self.graph,
            self.onnx_nodes,
            weights=self.weights,
            opsets=self.opsets,
            value_types=self.value_types,
        )


@dataclass(frozen=True)
class Body:
    """A body of a control-flow node as a function of its own.

    Its inputs are the body's own ones (iteration, condition, carried values, slices), then captured values by
    their names in the caller.

    Attributes:
        node: number of the node in the caller.
        attribute: name of the node's attribute with the body.
        function: the function.
        results: a name for each result of the body: an output, an input or a weight of the function.
    """

    node: int
    attribute: str
    function: Function
    results: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """A model file with its functions, one per shape set, in the user's order: one entry of a bundle."""

    path: Path
    sha256: str
    functions: tuple[Function, ...]
    float_types: frozenset[str]
    """Names of the float types of the original file."""
    notes: tuple[str, ...] = ()
    """Notes of the import for the report."""
    entry: str = MAIN
    absent_dims: frozenset[str] = frozenset()
    """Dimensions of several entries that this one lacks."""
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Defaults of inputs of the functions, by name: callers may leave these inputs out."""

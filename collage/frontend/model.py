"""The imported model: functions whose graph nodes correspond one to one to ONNX nodes.

`DataflowGraph.nodes[i]` is `Function.onnx_nodes[i]`. What Relax says about a node is in
`Function.relax_nodes[i]`: a function whose body is one Relax op, a function with several (a composite
op), or None (a foreign op, which only backends that run ONNX may take). Relax nodes are converted when
they are first asked for, so that a worker that compiles only ONNX regions never loads TVM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from collage.frontend.digest import RegionDigests
from collage.frontend.onnx_proto import open_type
from collage.graph.dataflow import DataflowGraph, OpenType, TensorType

if TYPE_CHECKING:
    from tvm import relax


@dataclass(frozen=True)
class RelaxNode:
    """A node in Relax: `function` takes `operands` (value names, weights included) in order.

    Small constants that decide shapes are already inlined, so `operands` may be fewer than the ONNX
    operands; each value appears once. Several outputs come back as a tuple.
    """

    function: "relax.Function"
    operands: tuple[str, ...]
    composite: bool


@dataclass(frozen=True)
class Function:
    """One shape set of the model, partitioned on its own.

    Attributes:
        weights: constant values by name; read-only arrays.
        opsets: version of every operator set that the nodes use; "" is the standard one.
        simplified: the folded, shape-bound ONNX file of this function (a worker re-imports it).
        value_types: ONNX type of every value, without shape where the shape depends on data.
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

    def type_of(self, value: str) -> TensorType | OpenType:
        """Return the type of any tensor, as far as it is known before the model runs."""
        static_type = self.graph.types.get(value)
        return static_type or open_type(self.value_types.get(value, onnx.TypeProto()))

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
class Model:
    """A model file with its functions, one per shape set, in the order the user gave them."""

    path: Path
    sha256: str
    functions: tuple[Function, ...]
    float_types: frozenset[str]
    """Of the file, before anything was changed."""
    notes: tuple[str, ...] = ()
    """What import could not do, in plain words (for the report)."""

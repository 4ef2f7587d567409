"""Conversion of single ONNX nodes to Relax functions.

TVM's ONNX converter receives a model of one node, so its faults concern one node only. The node is foreign
(without a Relax form) if the converter fails, needs a TIR function, or states another type than ONNX.
`emitters` replaces the converter for a few operators. Equal nodes (operator, attributes, types, embedded
constants) are converted once per process.
"""

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
import onnx

from collage.frontend.model import RelaxNode
from collage.frontend.onnx_attributes import attributes_of
from collage.frontend.onnx_proto import ELEMENT_TYPES, STANDARD_DOMAINS, sub_graphs, tensor_type
from collage.frontend.onnxruntime_session import first_line
from collage.frontend.random_operators import draws
from collage.graph.dataflow import TensorType

if TYPE_CHECKING:
    from tvm import relax

log = logging.getLogger(__name__)

_EMBEDDED: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Pad": (1, 2, 3), "Tile": (1,),
    "Resize": (1, 2, 3), "Upsample": (1,), "Clip": (1, 2), "Split": (1,), "Squeeze": (1,),
    "Unsqueeze": (1,), "TopK": (1,), "OneHot": (1, 2), "Range": (0, 1, 2), "ConstantOfShape": (0,),
    "CumSum": (1,), "Trilu": (1,), "Dropout": (1, 2), "ReduceMean": (1,), "ReduceSum": (1,),
    "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceL1": (1,), "ReduceL2": (1,),
    "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceSumSquare": (1,), "CenterCropPad": (1,),
}  # fmt: skip
"""Operands for shapes or bounds, by operator: constants at these positions become part of the node."""


@dataclass(frozen=True)
class SingleNode:
    """A model of one node with renumbered values, and the names of its inputs in the function."""

    model: onnx.ModelProto
    operands: tuple[str, ...]

    @property
    def key(self) -> bytes:
        return bytes(self.model.SerializeToString(deterministic=True))


def is_embedded(node: onnx.NodeProto, position: int, value: np.ndarray) -> bool:
    """Tell whether a constant operand is part of the node, as opposed to a weight."""
    if value.ndim == 0:
        return True
    return value.size <= 64 and position in _EMBEDDED.get(node.op_type, ())


def single_node(
    node: onnx.NodeProto,
    types: Mapping[str, TensorType],
    weights: Mapping[str, np.ndarray],
    opset: int,
) -> SingleNode | None:
    """Make the model of one standard node.

    Returns:
        None for a node with unknown types, with bodies, or that draws random numbers.
    """
    values = [name for name in (*node.input, *node.output) if name]
    if node.domain not in STANDARD_DOMAINS or any(True for _ in sub_graphs(node)):
        return None
    if draws(node):
        return None
    if any(name not in types for name in values):
        return None
    model = onnx.ModelProto(ir_version=8)
    model.opset_import.append(onnx.helper.make_opsetid("", opset))
    graph = model.graph
    graph.name = "node"
    copy = graph.node.add(op_type=node.op_type)
    copy.attribute.extend(_attributes(node, types))
    names: dict[str, str] = {}
    operands = []
    for position, name in enumerate(node.input):
        if name and name not in names:
            names[name] = f"v{len(names)}"
            value = weights.get(name)
            if value is not None and is_embedded(node, position, value):
                graph.initializer.append(onnx.numpy_helper.from_array(value, names[name]))
            else:
                graph.input.append(_value_info(names[name], types[name]))
                operands.append(name)
        copy.input.append(names.get(name, ""))
    for number, name in enumerate(node.output):
        copy.output.append(f"r{number}" if name else "")
        if name:
            graph.output.append(_value_info(f"r{number}", types[name]))
    return SingleNode(model, tuple(operands))


def _attributes(node: onnx.NodeProto, types: Mapping[str, TensorType]) -> list[onnx.AttributeProto]:
    """Return the sorted attributes, with explicit padding for a convolution's automatic padding."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    mode = attributes_of(node).text("auto_pad", "") if node.op_type == "Conv" else ""
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        del attributes["auto_pad"]
        pads = _same_pads(node, types, upper=mode == "SAME_UPPER")
        attributes["pads"] = onnx.helper.make_attribute("pads", pads)
    return [attributes[name] for name in sorted(attributes)]


def _same_pads(node: onnx.NodeProto, types: Mapping[str, TensorType], upper: bool) -> list[int]:
    attributes = attributes_of(node)
    sizes, kernel = types[node.input[0]].shape[2:], types[node.input[1]].shape[2:]
    strides = attributes.integers("strides", ()) or [1] * len(sizes)
    dilations = attributes.integers("dilations", ()) or [1] * len(sizes)
    begins, ends = [], []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        smaller, larger = total // 2, total - total // 2
        begins.append(smaller if upper else larger)
        ends.append(larger if upper else smaller)
    return begins + ends


def _value_info(name: str, value: TensorType) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, ELEMENT_TYPES[value.dtype], value.shape)


class RelaxNodes(Sequence[RelaxNode | None]):
    """The Relax nodes of a function, converted on first access."""

    def __init__(self, single: Callable[[int], SingleNode | None], size: int) -> None:
        self._single = single
        self._size = size
        self._nodes: dict[int, RelaxNode | None] = {}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> RelaxNode | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[RelaxNode | None]: ...
    def __getitem__(self, index: int | slice) -> RelaxNode | list[RelaxNode | None] | None:
        if isinstance(index, slice):
            return [self._at(position) for position in range(self._size)[index]]
        return self._at(range(self._size)[index])

    def _at(self, index: int) -> RelaxNode | None:
        if index not in self._nodes:
            single = self._single(index)
            self._nodes[index] = convert(single) if single else None
        return self._nodes[index]

    def __iter__(self) -> Iterator[RelaxNode | None]:
        return (self._at(index) for index in range(self._size))


_converted: "dict[bytes, tuple[relax.Function, bool] | None]" = {}


def convert(single: SingleNode) -> RelaxNode | None:
    """Convert a node; None for a foreign node."""
    key = single.key
    if key not in _converted:
        _converted[key] = _convert(single.model)
    conversion = _converted[key]
    if conversion is None:
        return None
    function, composite = conversion
    return RelaxNode(function, single.operands, composite)


def _convert(model: onnx.ModelProto) -> "tuple[relax.Function, bool] | None":
    """Return the function and whether it is a composite, or None for a foreign node."""
    from collage.frontend import emitters
    from collage.frontend.relax_ir import calls, is_plain, result_types, simplify

    expected_types = [tensor_type(value.type) for value in model.graph.output]
    for source in (emitters.emit, _ask_tvm):
        function = source(model)
        if function is None:
            continue
        function = simplify(function)
        if function is not None and is_plain(function) and result_types(function) == expected_types:
            return function, len(calls(function)) != 1
    return None


MAX_FOLDED_BYTES = 64 << 20
"""Size limit of results that TVM's converter computes in this process from constants alone."""


def _ask_tvm(model: onnx.ModelProto) -> "relax.Function | None":
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    results = [tensor_type(value.type) for value in model.graph.output]
    size_bytes = sum(result_type.size_bytes for result_type in results if result_type)
    if not model.graph.input and size_bytes > MAX_FOLDED_BYTES:
        return None
    logging.getLogger("tvm").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = from_onnx(model)
    except Exception as error:  # noqa: BLE001 - any failure means that the node has no Relax form
        operators = ", ".join(node.op_type for node in model.graph.node)
        log.debug(
            "TVM does not convert %s: %s: %s", operators, type(error).__name__, first_line(error)
        )
        return None
    if any(not isinstance(function, tvm.relax.Function) for function in module.functions.values()):
        return None
    return module["main"]

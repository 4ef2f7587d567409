"""The ONNX graph of a Relax function while it is written, and a call as its translation reads it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from collage.frontend.onnx_proto import ELEMENT_TYPES
from collage.frontend.relax_ir import static_type
from collage.graph.dataflow import TensorType
from collage.runtime.arrays import numpy_dtype


class Untranslatable(Exception):
    """An operator has no ONNX form with these operands and attributes; the text says with which."""


class GraphWriter:
    """Nodes and initialisers of an ONNX graph, and the names of Relax variables in it.

    Attributes:
        nodes: nodes in an order of evaluation.
        initializers: constants.
        names: names of the tensors of a variable: one, or those of a tuple.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.names: dict[relax.Var, list[str]] = {}
        self._taken: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def free_name(self, prefix: str) -> str:
        """Return `prefix`, with a number behind it if it is taken, and take it."""
        name, number = prefix, len(self._taken)
        while name in self._taken:
            number += 1
            name = f"{prefix}_{number}"
        self._taken.add(name)
        return name

    def add(self, operator: str, operands: Sequence[str], **attributes: Any) -> str:
        """Add a node of one output; return its name."""
        return self.add_several(operator, operands, 1, **attributes)[0]

    def add_several(
        self, operator: str, operands: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node of several outputs; return their names."""
        names = [self.free_name(operator.lower()) for _ in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operator, operands, names, names[0], **attributes))
        return names

    def constant(self, value: np.ndarray) -> str:
        """Add a constant, once for equal ones; return its name."""
        data = hashlib.sha256(value.tobytes()).digest() if value.size else b""
        key = (str(value.dtype), value.shape, data)
        if key not in self._constants:
            self._constants[key] = self.free_name("constant")
            tensor = onnx.numpy_helper.from_array(value, self._constants[key])
            self.initializers.append(tensor)
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> str:
        """Add a vector of int64."""
        return self.constant(np.array(values, np.int64))

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        allows_zero = int(0 in shape)
        return self.add("Reshape", [value, self.integers(shape)], allowzero=allows_zero)

    def expand(self, value: str, shape: Sequence[int]) -> str:
        return self.add("Expand", [value, self.integers(shape)])

    def transpose(self, value: str, axes: Sequence[int]) -> str:
        """Add a transposition, unless it would change nothing."""
        if list(axes) == list(range(len(axes))):
            return value
        return self.add("Transpose", [value], perm=list(axes))

    def cast(self, value: str, result: TensorType) -> str:
        return self.add("Cast", [value], to=ELEMENT_TYPES[result.dtype])


@dataclass(frozen=True)
class Operator:
    """A call of a Relax operator in a flat function.

    Attributes:
        call: the call.
        inputs: types of its tensors, those of a tuple one after another.
        results: types of its results.
    """

    call: relax.Call
    inputs: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    @classmethod
    def of(cls, call: relax.Call) -> "Operator":
        """Read a call of a flat function."""
        inputs = [kind for arg in call.args for kind in _tensor_types(arg.ty)]
        return cls(call, tuple(inputs), tuple(_tensor_types(call.ty)))

    @property
    def name(self) -> str:
        """The operator's name without `relax.`."""
        return str(self.call.op.name).removeprefix("relax.")

    @property
    def attributes(self) -> Any:
        """The operator's attributes, an object of TVM whose fields are those of the operator."""
        return self.call.attrs

    @property
    def args(self) -> Sequence[relax.Expr]:
        return tuple(self.call.args)

    @property
    def result(self) -> TensorType:
        return self.results[0]

    @cached_property
    def numpy_dtype(self) -> "np.dtype[Any]":
        """Type of the elements of the first tensor."""
        return numpy_dtype(self.inputs[0].dtype)

    @cached_property
    def result_numpy_dtype(self) -> "np.dtype[Any]":
        return numpy_dtype(self.result.dtype)

    @property
    def is_float(self) -> bool:
        return "float" in self.inputs[0].dtype

    def require(self, is_translatable: bool, attribute: str) -> None:
        """Check that ONNX can say an attribute. Raises Untranslatable."""
        if not is_translatable:
            raise Untranslatable(attribute)

    def require_input_dtype(self, attribute: str) -> None:
        """Check that an attribute for the type of the result does not ask for another than the input's."""
        chosen = getattr(self.attributes, attribute, None)
        dtype = str(chosen) if chosen is not None else ""
        self.require(dtype in ("", "void", self.inputs[0].dtype), f"of {attribute} {dtype}")

    def integers(self, attribute: str) -> tuple[int, ...]:
        """Return an attribute of several integers; empty for None."""
        values = getattr(self.attributes, attribute)
        return () if values is None else tuple(int(value) for value in values)

    def numbers(self, position: int) -> list[float]:
        """Return the scalars at `position` of the arguments, and all behind it if it is no tuple."""
        arg = self.args[position]
        fields = arg.fields if isinstance(arg, relax.Tuple) else self.args[position:]
        return [number(item) for item in fields]

    def operand(self, writer: GraphWriter, position: int) -> str:
        """Return the name of a tensor at `position` of the arguments."""
        return _names(writer, self.args[position], self)[0]

    def operands(self, writer: GraphWriter) -> list[str]:
        """Return the names of all tensors among the arguments."""
        return [name for arg in self.args for name in _names(writer, arg, self)]

    def tensors(self, writer: GraphWriter) -> list[str]:
        """Return the names of `inputs`."""
        return [
            name
            for arg in self.args
            if not isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm)
            for name in _names(writer, arg, self)
        ]


def _tensor_types(value_type: relax.Type) -> list[TensorType]:
    """Return the types of a tensor, or of those of a tuple. Raises Untranslatable for open shapes."""
    if isinstance(value_type, relax.TupleType):
        return [kind for item in value_type.fields for kind in _tensor_types(item)]
    if not isinstance(value_type, relax.TensorType):
        return []
    tensor = static_type(value_type)
    if tensor is None:
        raise Untranslatable("with a shape that depends on values")
    return [tensor]


def _names(writer: GraphWriter, arg: relax.Expr, operator: Operator) -> list[str]:
    if isinstance(arg, relax.Tuple):
        return [name for item in arg.fields for name in _names(writer, item, operator)]
    if isinstance(arg, relax.Var):
        return writer.names[arg]
    if isinstance(arg, tvm.ir.Constant) and isinstance(arg.ty, relax.TensorType):
        return [writer.constant(arg.value.numpy())]
    if isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        dtype = (operator.inputs or operator.results)[-1].dtype
        return [writer.constant(np.asarray(arg.value, numpy_dtype(dtype)))]
    return []


def number(item: relax.Expr) -> float:
    """Return the value of a scalar. Raises Untranslatable for a value that is computed."""
    if isinstance(item, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        value: float = item.value
        return value
    if isinstance(item, tvm.ir.Constant) and item.value.shape == ():
        return float(item.value.numpy())
    raise Untranslatable("on a scalar that is computed")

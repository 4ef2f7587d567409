"""Builders of tiny models by the name of their trait, and parts that they share."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Builder = Callable[[], onnx.ModelProto]


BUILDERS: dict[str, Builder] = {}


def trait(builder: Builder) -> Builder:
    """Register a builder under its own name."""
    BUILDERS[builder.__name__] = builder
    return builder


def value(name: str, dtype: int = TensorProto.FLOAT, shape: Sequence[int] | None = (2, 3)):
    return helper.make_tensor_value_info(name, dtype, shape)


def untyped(*names: str) -> list[onnx.ValueInfoProto]:
    return [onnx.ValueInfoProto(name=name) for name in names]


def weight(name: str, array: object, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def model(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    weights: Sequence[TensorProto] = (),
    opsets: Mapping[str, int] | None = None,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """Make a model, by default of one input `x`: float32[2, 3]."""
    graph = helper.make_graph(
        nodes, "valid", list(inputs or [value("x")]), untyped(*outputs), list(weights)
    )
    imports = [helper.make_opsetid(*item) for item in (opsets or {"": 18}).items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)

"""Small ONNX models for the tests of this folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, helper

from collage.frontend import Function, import_model

Shape = Sequence[int | str | None]


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[str, Shape]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Make a model; `inputs` maps a name to dtype and shape, outputs have no type."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    document = helper.make_model(graph, opset_imports=opsets)
    document.ir_version = 10
    return document


def _info(name: str, dtype: str, shape: Shape) -> onnx.ValueInfoProto:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, number, shape)


def save(document: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(document, path)
    return path


def imported(document: onnx.ModelProto, folder: Path) -> Function:
    """Import a model whose shapes are all known."""
    return import_model(save(document, folder), work_dir=folder / "work").functions[0]


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)

"""Bundles for model servers: one for long inputs, and one that hangs on request."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.runtime import executables
from tests.runtime.conftest import write_manifest

WIDE = (1, 1 << 17)
FOREVER = 1 << 50
"""Rounds of a loop that outlives every test."""


def wide_bundle(folder: Path) -> Path:
    """Make a bundle of y = relu(x) for a long x."""
    blob = executables.onnx_blob(executables.relu_model(WIDE))
    x = np.random.default_rng(1).standard_normal(WIDE).astype("float32")
    tensor = {"shape": list(WIDE), "dtype": "float32"}
    return _save(
        folder, blob, [(WIDE, "float32")], (WIDE, "float32"), {"x": x}, np.maximum(x, 0),
        [{"name": "x", **tensor}], {"name": "y", **tensor},
    )  # fmt: skip


def looping_bundle(folder: Path) -> Path:
    """Make a bundle that counts to x: `FOREVER` is a call that never ends, and -5 one that fails."""
    blob = executables.onnx_blob(_loop())
    tensor = {"shape": [1], "dtype": "int64"}
    three = np.array([3], "int64")
    return _save(
        folder, blob, [((1,), "int64")], ((1,), "int64"), {"x": three}, three,
        [{"name": "x", **tensor}], {"name": "y", **tensor},
    )  # fmt: skip


def _save(folder, blob, inputs, output, golden, expected, declared, result) -> Path:
    module = executables.chain([("onnxruntime", blob)], inputs, [output])
    executables.export(module, folder / "model.so")
    arrays = {f"main/input/{name}": value for name, value in golden.items()}
    np.savez(folder / "golden.npz", **arrays, **{"main/output/y": expected})
    function = {"function": "main", "inputs": declared, "outputs": [result]}
    write_manifest(folder, functions=[function])
    return folder


def _loop() -> bytes:
    """A Loop with x rounds, each of which adds one, and an index that is out of range below -2."""
    info = helper.make_tensor_value_info
    int64, boolean = TensorProto.INT64, TensorProto.BOOL
    first = numpy_helper.from_array(np.array([1], "int64"), "one")
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "one"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
        "body", [info("round", int64, []), info("go", boolean, []), info("sum", int64, [1])],
        [info("on", boolean, []), info("next", int64, [1])], [first],
    )  # fmt: skip
    constants = [
        numpy_helper.from_array(np.array(value, "int64"), name)
        for name, value in (("zero", [0]), ("unit", [1]), ("table", [0, 0]))
    ]
    graph = helper.make_graph(
        [helper.make_node("Squeeze", ["x"], ["rounds"]),
         helper.make_node("Loop", ["rounds", "", "zero"], ["count"], body=body),
         helper.make_node("Min", ["x", "unit"], ["index"]),
         helper.make_node("Gather", ["table", "index"], ["nothing"]),
         helper.make_node("Add", ["count", "nothing"], ["y"])],
        "main", [info("x", int64, [1])], [info("y", int64, [1])], constants,
    )  # fmt: skip
    created = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return created.SerializeToString()

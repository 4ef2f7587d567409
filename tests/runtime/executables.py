"""Executables whose only kernels are the plug-in's, for the tests of runtime and backends."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax

from collage.runtime.blob import Header, pack
from collage.runtime.plugin import load_plugin

Type = tuple[tuple[int, ...], str]


def relu_model(shape: tuple[int, ...] = (1, 8)) -> bytes:
    """An ONNX model y = relu(x)."""
    return model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})


def model(nodes, inputs, outputs, initializers=()) -> bytes:
    def infos(named):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in named.items()
        ]

    graph = helper.make_graph(nodes, "region", infos(inputs), infos(outputs), list(initializers))
    model_proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.checker.check_model(model_proto)
    return model_proto.SerializeToString()


def onnx_blob(onnx_bytes: bytes, **header: str | int) -> bytes:
    entries: Header = {"threads": 1, **header}
    return pack(entries, [np.frombuffer(onnx_bytes, np.uint8)])


def chain(
    kernels: Sequence[tuple[str, bytes]],
    inputs: Sequence[Type],
    outputs: Sequence[Type],
    name: str = "main",
) -> tvm.IRModule:
    """Function `name` calls the kernels in turn; each takes what the one before returned."""
    load_plugin()
    create = tvm_ffi.get_global_func("collage.create_module")
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(*spec)) for i, spec in enumerate(inputs)]
    types = [relax.TensorType(*spec) for spec in outputs]
    modules = []
    with builder.function(name, params):
        with builder.dataflow():
            values: list[relax.Expr] = list(params)
            for index, (kind, blob) in enumerate(kernels):
                symbol = f"{name}_kernel_{index}"
                modules.append(create(kind, symbol, blob))
                call = relax.op.call_dps_packed(symbol, relax.Tuple(values), types)
                variable = builder.emit(call)
                values = [variable] if len(types) == 1 else [
                    builder.emit(relax.TupleGetItem(variable, i)) for i in range(len(types))
                ]  # fmt: skip
            result = builder.emit_output(values[0] if len(values) == 1 else relax.Tuple(values))
        builder.emit_func_output(result)
    return builder.get().with_attr("external_mods", modules)


def export(module: tvm.IRModule, path: Path) -> Path:
    tvm.compile(module, target="llvm").export_library(str(path))
    return path


def run_saved(path: Path, *inputs: np.ndarray) -> list[np.ndarray]:
    """Load the exported executable anew and run it."""
    machine = tvm_ffi.load_module(str(path))["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)
    result = machine["main"](*(tvm.runtime.tensor(value) for value in inputs))
    results = [result] if hasattr(result, "shape") else list(result)
    return [np.from_dlpack(result).copy() for result in results]


def call_kernel(
    kind: str, blob: bytes, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Run one kernel without a virtual machine."""
    load_plugin()
    module = tvm_ffi.get_global_func("collage.create_module")(kind, "kernel", blob)
    tensors = [tvm.runtime.tensor(value) for value in inputs]
    results = [tvm.runtime.tensor(value) for value in outputs]
    module.get_function("kernel")(*tensors, *results)
    for array, result in zip(outputs, results, strict=True):
        array[...] = result.numpy()

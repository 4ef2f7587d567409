"""What one kernel call costs inside an executable, per backend: `python -m benchmarks.call_overhead`.

A chain of 50 kernels, each relu on a 1x8 tensor, runs in one Relax VM; the cost of a call is the
chain's median time over its length, so it holds the VM's dispatch, the backend's own overhead and
eight comparisons. One thread.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax

from collage.backends.base import Backend, PluginKernel
from collage.backends.registry import all_backends
from collage.errors import BackendError
from collage.frontend import Function, import_model
from collage.runtime.plugin import load_plugin

LENGTH = 50
SHAPE = (1, 8)


def relu(folder: Path) -> Function:
    """The function y = relu(x)."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "relu.onnx")
    return import_model(folder / "relu.onnx", work_dir=folder).functions[0]


def chain(kernel: PluginKernel | None) -> tvm.IRModule:
    """`main` runs LENGTH equal kernels one after the other; None stands for TVM's own relu."""
    builder = relax.BlockBuilder()
    modules = []
    param = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [param]):
        with builder.dataflow():
            value: relax.Expr = param
            for index in range(LENGTH):
                if kernel is None:
                    value = builder.emit(relax.op.nn.relu(value))
                    continue
                create = tvm_ffi.get_global_func("collage.create_module")
                modules.append(create(kernel.kind, f"kernel_{index}", kernel.blob))
                arguments = relax.Tuple([value])
                call = relax.op.call_dps_packed(f"kernel_{index}", arguments, [param.ty])
                value = builder.emit(call)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get().with_attr("external_mods", modules)


def compiled(backend: Backend, function: Function) -> PluginKernel | None:
    """The backend's relu. Raises BackendError when it has none."""
    reason = backend.availability().reason or backend.unsupported(function, 0)
    if reason:
        raise BackendError(reason)
    kernel = backend.compile(function, 1, threads=1)
    return kernel if isinstance(kernel, PluginKernel) else None


def seconds_per_call(kernel: PluginKernel | None, folder: Path, calls: int) -> float:
    """Median seconds of one kernel call."""
    path = folder / "chain.so"
    with tvm.transform.PassContext(disabled_pass=["FuseOps"]):
        tvm.compile(chain(kernel), target="llvm").export_library(str(path))
    machine = tvm_ffi.load_module(str(path))["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)
    function, x = machine["main"], tvm.runtime.tensor(np.ones(SHAPE, "float32"))
    samples = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        function(x)
        samples.append((time.perf_counter_ns() - start) * 1e-9)
    return statistics.median(samples) / LENGTH


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of one kernel call inside an executable.")
    parser.add_argument("--calls", type=int, default=2000, help="calls of the chain")
    arguments = parser.parse_args()
    load_plugin()
    print(f"{'backend':<14}{'us per call':>12}")
    for backend in all_backends():
        with tempfile.TemporaryDirectory() as folder:
            try:
                kernel = compiled(backend, relu(Path(folder)))
            except BackendError as error:
                print(f"{backend.name:<14}{'-':>12}  {error}")
                continue
            seconds = seconds_per_call(kernel, Path(folder), arguments.calls)
        print(f"{backend.name:<14}{seconds * 1e6:12.2f}")


if __name__ == "__main__":
    main()

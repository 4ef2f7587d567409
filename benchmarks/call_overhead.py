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

from collage.runtime.blob import pack
from collage.runtime.plugin import library_names, library_reason, load_plugin

LENGTH = 50
SHAPE = (1, 8)


def relu_model() -> bytes:
    """An ONNX model y = relu(x)."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return model.SerializeToString()


def chain(kind: str) -> tvm.IRModule:
    """`main` runs LENGTH kernels of `kind` one after the other."""
    builder = relax.BlockBuilder()
    modules = []
    blob = pack({"threads": 1}, [np.frombuffer(relu_model(), np.uint8)])
    param = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [param]):
        with builder.dataflow():
            value: relax.Expr = param
            for index in range(LENGTH):
                if kind == "tvm":
                    value = builder.emit(relax.op.nn.relu(value))
                    continue
                symbol = f"kernel_{index}"
                modules.append(tvm_ffi.get_global_func("collage.create_module")(kind, symbol, blob))
                call = relax.op.call_dps_packed(symbol, relax.Tuple([value]), [param.ty])
                value = builder.emit(call)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get().with_attr("external_mods", modules)


def seconds_per_call(kind: str, calls: int) -> float:
    """Median seconds of one kernel call."""
    load_plugin()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.so"
        with tvm.transform.PassContext(disabled_pass=["FuseOps"]):
            tvm.compile(chain(kind), target="llvm").export_library(str(path))
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000, help="calls of the chain")
    arguments = parser.parse_args()
    print(f"{'backend':<14}{'us per call':>12}")
    for kind in ("tvm", *(name for name in library_names() if name in KINDS)):
        if kind != "tvm" and (reason := library_reason(kind)):
            print(f"{kind:<14}{'-':>12}  {reason}")
            continue
        print(f"{kind:<14}{seconds_per_call(kind, arguments.calls) * 1e6:12.2f}")


KINDS = frozenset({"onnxruntime", "openvino"})

if __name__ == "__main__":
    main()

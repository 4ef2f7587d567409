"""Call overhead: of `collage.load(bundle).run(feeds)`, and of one kernel inside an executable.

    python -m benchmarks.call_overhead [--output benchmarks]

First the loader: a bundle of a function that returns its inputs, against ONNX Runtime's
`InferenceSession.run(None, feeds)` and OpenVINO's `compiled_model(feeds)` of Identity nodes, in turns in one
process. The functions compute nothing, so the time is the overhead of the call. Inputs are as allocated by
numpy, or begin at a multiple of 64 bytes. `--output` writes the table as a section of RESULTS.md.

Then the kernels: a chain of 50 kernels, each relu on a 1x8 tensor, runs in one Relax VM. The overhead of a
call is the chain's median time over its length: the VM's dispatch, the backend's own overhead and eight
comparisons. One thread.
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax

import collage
from benchmarks.results import machine, write_section
from collage.backends.base import Backend, BuildContext, PluginKernel
from collage.backends.registry import all_backends
from collage.backends.telemetry import import_openvino
from collage.errors import BackendError
from collage.frontend import Function, import_model
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin

LENGTH = 50
SHAPE = (1, 8)
CASES = {"1 x 32 B": (1, (1, 8)), "4 x 32 B": (4, (1, 8)), "1 x 588 KiB": (1, (1, 3, 224, 224))}
"""Number of inputs, equal to that of outputs, and their shape."""
ROUNDS, CALLS = 200, 20
Call = Callable[[], object]


def relu(folder: Path) -> Function:
    """Return the function y = relu(x)."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "relu.onnx")
    return import_model(folder / "relu.onnx", work_dir=folder).functions[0]


def chain(kernel: PluginKernel | None) -> tvm.IRModule:
    """Return a module with LENGTH equal kernels in sequence; None for TVM's own relu."""
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
    """Return the backend's relu. Raises BackendError without one."""
    reason = backend.availability().reason or backend.unsupported(function, 0)
    if reason:
        raise BackendError(reason)
    kernel = backend.compile(function, 1, BuildContext(1))
    return kernel if isinstance(kernel, PluginKernel) else None


def seconds_per_call(kernel: PluginKernel | None, folder: Path, calls: int) -> float:
    """Return the median seconds of one kernel call."""
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


def identity_bundle(count: int, shape: tuple[int, ...], folder: Path) -> Path:
    """Write a bundle of an identity function, without golden data."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(shape, "float32")) for n in range(count)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(params[0] if count == 1 else relax.Tuple(params))
        builder.emit_func_output(result)
    tvm.compile(builder.get(), target="llvm").export_library(str(folder / "model.so"))

    def tensors(letter: str) -> list[dict[str, object]]:
        return [
            {"name": f"{letter}{n}", "shape": list(shape), "dtype": "float32"} for n in range(count)
        ]

    manifest = {
        "schema_version": 3,
        "gate": [],
        "executable": "model.so",
        "functions": [{"function": "main", "inputs": tensors("x"), "outputs": tensors("y")}],
        "threads": 1,
        "cpu": {"model": "any", "features": []},
        "libraries": {},
        "files": {"model.so": hashlib.sha256((folder / "model.so").read_bytes()).hexdigest()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def identity_model(count: int, shape: tuple[int, ...], file: Path) -> Path:
    """Write the same function as Identity nodes."""
    inputs, outputs = (
        [
            helper.make_tensor_value_info(f"{letter}{n}", TensorProto.FLOAT, shape)
            for n in range(count)
        ]
        for letter in "xy"
    )
    nodes = [helper.make_node("Identity", [f"x{n}"], [f"y{n}"]) for n in range(count)]
    graph = helper.make_graph(nodes, "identity", inputs, outputs)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), file)
    return file


def callers(count: int, shape: tuple[int, ...], folder: Path) -> dict[str, Call]:
    """Return a call of each, as its users write it."""
    import onnxruntime

    model = str(identity_model(count, shape, folder / "identity.onnx"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    openvino = import_openvino()
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    compiled_model = openvino.Core().compile_model(model, "CPU", settings)
    bundle = collage.load(identity_bundle(count, shape, folder))
    feeds = {f"x{n}": np.ones(shape, "float32") for n in range(count)}
    aligned = {name: aligned_copy(array) for name, array in feeds.items()}
    return {
        "onnxruntime": lambda: session.run(None, feeds),
        "openvino": lambda: compiled_model(feeds),
        "collage": lambda: bundle.run(feeds),
        "collage, aligned": lambda: bundle.run(aligned),
    }


def call_seconds(calls: Mapping[str, Call]) -> dict[str, float]:
    """Median seconds of one call of each, in turns whose order is drawn: nobody follows one alone."""
    order, random = list(calls), np.random.default_rng(0)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            call = calls[name]
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter_ns() - start) * 1e-9 / CALLS)
    return {name: statistics.median(case_samples) for name, case_samples in samples.items()}


def loader_table() -> str:
    """Measure all cases; return the section."""
    lines = [
        "## A call",
        "",
        f"`python -m benchmarks.call_overhead --output benchmarks` on {machine()}. One call of a model "
        "that only returns its inputs, us; in brackets the ratio to ONNX Runtime in the same run.",
        "",
        "| inputs | onnxruntime | openvino | collage | collage, aligned |",
        "|---|---|---|---|---|",
    ]
    for name, (count, shape) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            seconds = call_seconds(callers(count, shape, Path(folder)))
        reference_s = seconds["onnxruntime"]
        cells = [f"{case_s * 1e6:.1f} ({case_s / reference_s:.2f})" for case_s in seconds.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a call, of a bundle and of a kernel.")
    parser.add_argument("--calls", type=int, default=2000, help="calls of the chain")
    parser.add_argument("--output", type=Path, help="folder of RESULTS.md, to write the section")
    arguments = parser.parse_args()
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    load_plugin()
    table = loader_table()
    print(table)
    if arguments.output:
        write_section(arguments.output, "calls", table)
    print_kernels(arguments.calls)


def print_kernels(calls: int) -> None:
    """Print the cost of a kernel in each backend."""
    print(f"{'backend':<14}{'us per call':>12}")
    for backend in all_backends():
        with tempfile.TemporaryDirectory() as folder:
            try:
                kernel = compiled(backend, relu(Path(folder)))
            except BackendError as error:
                print(f"{backend.name:<14}{'-':>12}  {error}")
                continue
            seconds = seconds_per_call(kernel, Path(folder), calls)
        print(f"{backend.name:<14}{seconds * 1e6:12.2f}")


if __name__ == "__main__":
    main()

"""A child process that holds one contender and runs it when asked: `python -m collage.verify.contender`.

Contenders are separate processes so that no thread pool, allocator or cache of one disturbs the
other; each sleeps on its pipe while another runs. Started with one JSON line (kind, path, function,
inputs, threads); then each line `N` makes N timed calls and answers with a JSON list of seconds, and
a line `save FILE` writes the outputs of one call of an executable, in order, as .npz.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

import numpy as np

from collage.measure.worker import die_with_parent

Run = Callable[[], object]


def _executable(path: str, function: str, inputs: dict[str, np.ndarray], threads: int) -> Run:
    import tvm_ffi

    from collage.runtime.plugin import load_plugin

    load_plugin()
    tvm_ffi.get_global_func("collage.set_threads")(threads)
    machine = tvm_ffi.load_module(path)["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)
    call = machine[function]
    tensors = [tvm_ffi.from_dlpack(_aligned(value)) for value in inputs.values()]
    return lambda: call(*tensors)


def _aligned(value: np.ndarray) -> np.ndarray:
    """Copy to 64-byte alignment; booleans travel as they are."""
    raw = np.empty(value.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


def _onnxruntime(path: str, _: str, inputs: dict[str, np.ndarray], threads: int) -> Run:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _openvino(path: str, _: str, inputs: dict[str, np.ndarray], threads: int) -> Run:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    tensors = {name: openvino.Tensor(value, shared_memory=True) for name, value in inputs.items()}
    for name, tensor in tensors.items():
        request.set_tensor(name, tensor)
    return lambda: request.infer()


KINDS = {"executable": _executable, "onnxruntime": _onnxruntime, "openvino": _openvino}


def main() -> None:
    die_with_parent(int(sys.argv[1]))  # one that hangs would not notice the end of its pipe
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not corrupt the answers
    request = json.loads(sys.stdin.readline())
    with np.load(request["inputs"]) as stored:
        inputs = {name: np.asarray(stored[name], order="C") for name in request["order"]}
    try:
        make = KINDS[request["kind"]]
        run = make(request["path"], request["function"], inputs, request["threads"])
        run()
    except Exception as error:
        _answer(answers, {"error": f"{type(error).__name__}: {_first_line(error)}"})
        return
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        word, _, file = line.strip().partition(" ")
        _answer(answers, _save(run, file) if word == "save" else _timed(run, int(word)))


def _timed(run: Run, calls: int) -> list[float]:
    samples = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        run()
        samples.append((time.perf_counter_ns() - start) * 1e-9)
    return samples


def _save(run: Run, file: str) -> int:
    result = run()
    outputs = [result] if hasattr(result, "shape") else list(result)  # type: ignore[call-overload]
    np.savez(file, *(np.from_dlpack(output) for output in outputs))  # type: ignore[arg-type]
    return len(outputs)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def _answer(to: TextIO, value: object) -> None:
    to.write(json.dumps(value) + "\n")
    to.flush()


if __name__ == "__main__":
    main()

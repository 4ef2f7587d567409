"""A child process that holds one contender and runs it when asked: `python -m collage.verify.contender`.

Contenders are separate processes so that no thread pool, allocator or cache of one disturbs the
other; each sleeps on its pipe while another runs. Started with one JSON line (kind, path, function,
inputs, threads); then each line `N` makes N timed calls and answers with a JSON list of seconds, and
a line `save FILE` writes the outputs of one call of an executable, in order, as .npz; a line
`profile N` makes N calls of an executable with its kernels timed one by one.

The profile hooks into the virtual machine (`set_instrument`), so it times the very file that ships.
The hook's own time falls partly between its two readings of the clock: the cheapest of the machine's
built-ins, which do nearly nothing, shows how much, and that much is taken off every kernel.
"""

import json
import os
import statistics
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
    return _Executable(lambda: call(*tensors), machine["set_instrument"])


class _Executable:
    """An executable's function on its inputs."""

    def __init__(self, run: Run, set_instrument: Callable[[object], object]) -> None:
        self._run = run
        self._set_instrument = set_instrument

    def __call__(self) -> object:
        return self._run()

    def profile(self, calls: int) -> dict[str, float]:
        """Return the median seconds of every kernel by symbol; the hook stays for good."""
        import tvm_ffi

        samples: dict[str, list[float]] = {}
        started = 0

        def instrument(_: object, symbol: str, before: bool, *_rest: object) -> int:
            nonlocal started
            now = time.perf_counter_ns()
            if not before:
                samples.setdefault(symbol, []).append((now - started) * 1e-9)
            started = time.perf_counter_ns()
            return 0

        self._set_instrument(tvm_ffi.convert(instrument))
        self._run()
        samples.clear()
        for _ in range(calls):
            self._run()
        return without_hook({name: statistics.median(all_) for name, all_ in samples.items()})


def without_hook(medians: dict[str, float]) -> dict[str, float]:
    """Take the hook's own time off; return the kernels alone.

    >>> without_hook({"vm.builtin.reshape": 1.0, "collage_main_0_tvm": 5.0})
    {'collage_main_0_tvm': 4.0}
    """
    hook = min((s for name, s in medians.items() if name.startswith("vm.builtin.")), default=0.0)
    kernels = {name: s for name, s in medians.items() if name.startswith("collage_")}
    return {name: max(0.0, seconds - hook) for name, seconds in kernels.items()}


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
        if word == "profile" and isinstance(run, _Executable):
            _answer(answers, run.profile(int(file)))
        else:
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

"""A child process that holds one benchmark target: `python -m collage.verify.benchmark_worker`.

Targets are separate processes, so that thread pools, allocators and caches do not disturb each other; each
sleeps on its pipe while another runs. The first line is a JSON request (kind, path, signature, inputs,
threads, cpus). The following lines are commands, each with one JSON answer:

    N               N timed calls: the list of their seconds
    save JSON       one call, its outputs called "names" in this order to the .npz "file": their number
    profile N       N calls, and N with each kernel timed: the median seconds
    answer FOLDER   expected outputs of the accuracy samples in the folder (`accuracy_samples`)
    check FOLDER    errors of the outputs for these samples
    compare FOLDER  the difference from the original's outputs for these samples, in words

The profile uses a hook of the virtual machine (`set_instrument`), so it times the same file that ships. Part
of the hook's own time falls between its two readings of the clock. The cheapest built-in of the virtual
machine does nearly nothing; its time is subtracted from every kernel.
"""

import abc
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from collage.backends.telemetry import import_openvino
from collage.masking import mask_numbers
from collage.runtime.arrays import load_arrays
from collage.runtime.child import die_with_parent
from collage.runtime.manifest import Signature, read_signature
from collage.runtime.plugin import FULL_PRECISION, PROVIDER_LIBRARIES, open_libraries
from collage.runtime.session import ExecutableSession
from collage.runtime.target import Target
from collage.verify.accuracy_samples import RunOn, differences, largest_errors, write_expected
from collage.verify.original_model import Original, Provider, open_file

if TYPE_CHECKING:
    import onnxruntime


class Runner(abc.ABC):
    """A benchmark target with the interface of its users: arrays by name in, new arrays out."""

    def __init__(self, inputs: dict[str, np.ndarray]) -> None:
        self.inputs = inputs

    @abc.abstractmethod
    def __call__(self) -> object:
        """Run once."""

    @abc.abstractmethod
    def outputs(self, names: Sequence[str]) -> list[np.ndarray]:
        """Run once and return the outputs called `names`, in the function's order."""

    def run_on(self, values: Sequence[np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        """Run on other inputs, in the function's order; the inputs are restored afterwards."""
        before = [array.copy() for array in self.inputs.values()]
        try:
            self._feed(values)
            return [output.copy() for output in self.outputs(names)]
        finally:
            self._feed(before)

    def _feed(self, values: Sequence[np.ndarray]) -> None:
        for array, value in zip(self.inputs.values(), values, strict=True):
            np.copyto(array, value)


class _Executable(Runner):
    """An executable's function, called like a bundle."""

    def __init__(
        self,
        path: str,
        inputs: dict[str, np.ndarray],
        threads: int,
        signature: Signature,
        *,
        device: Target = Target.CPU,
    ) -> None:
        super().__init__(inputs)
        self._device = device
        self._kernel = signature.kernel
        self._session = ExecutableSession(Path(path), (signature,), threads, device)

    def __call__(self) -> object:
        return self._session.run(self.inputs)

    def outputs(self, names: Sequence[str]) -> list[np.ndarray]:
        return list(self._session.run(self.inputs).values())

    def profile(self, calls: int) -> dict[str, object]:
        """Time `calls` complete calls, in turns with as many calls with every kernel timed.

        Returns the median seconds of a complete call ("call_s") and of every kernel by symbol ("kernels_s").
        """
        import tvm_ffi

        if self._device.is_asynchronous:
            raise RuntimeError(
                "kernels on a GPU end after their launch, which is all the host can time"
            )
        if self._kernel:
            call_s = statistics.median(_later(_timed(self, 1 + calls)))
            return {"call_s": call_s, "kernels_s": {self._kernel: call_s}}
        samples: dict[str, list[float]] = {}
        started = 0

        def instrument(_: object, symbol: str, before: bool, *_arguments: object) -> int:
            nonlocal started
            now_ns = time.perf_counter_ns()
            if not before:
                samples.setdefault(symbol, []).append((now_ns - started) * 1e-9)
            started = time.perf_counter_ns()
            return 0

        hook, set_hook = tvm_ffi.convert(instrument), self._session.machine["set_instrument"]
        calls_s: list[float] = []
        try:
            for _ in range(1 + calls):
                set_hook(None)
                calls_s += _timed(self, 1)
                set_hook(hook)
                self()
        finally:
            set_hook(None)
        kernels = {name: statistics.median(_later(all_)) for name, all_ in samples.items()}
        return {"call_s": statistics.median(_later(calls_s)), "kernels_s": without_hook(kernels)}


def _later(samples: Sequence[float]) -> Sequence[float]:
    """Leave out the first sample: its call refilled the caches."""
    return samples[1:] or samples


def without_hook(medians: dict[str, float]) -> dict[str, float]:
    """Subtract the hook's own time; return only the kernels.

    >>> without_hook({"vm.builtin.reshape": 1.0, "collage_main_0_tvm": 5.0})
    {'collage_main_0_tvm': 4.0}
    """
    hook = min((s for name, s in medians.items() if name.startswith("vm.builtin.")), default=0.0)
    kernels = {name: s for name, s in medians.items() if name.startswith("collage_")}
    return {name: max(0.0, seconds - hook) for name, seconds in kernels.items()}


def session_options(threads: int) -> "onnxruntime.SessionOptions":
    """Return the default options of a session with `threads` threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


class _OnnxRuntime(Runner):
    def __init__(self, path: str, inputs: dict[str, np.ndarray], threads: int) -> None:
        super().__init__(inputs)
        self._session = open_file(path, session_options(threads), ["CPUExecutionProvider"])

    def __call__(self) -> object:
        return self._session.run(None, self.inputs)

    def outputs(self, names: Sequence[str]) -> list[np.ndarray]:
        return list(self._session.run(list(names), self.inputs))


class _Original(Runner):
    """The reference (`verify.original_model`)."""

    def __init__(self, path: str, inputs: dict[str, np.ndarray], threads: int) -> None:
        from collage.frontend.float16 import file_float_types

        super().__init__(inputs)
        self._original = Original(path, file_float_types(Path(path)))

    def __call__(self) -> object:
        return self._original.run((), self.inputs)

    def outputs(self, names: Sequence[str]) -> list[np.ndarray]:
        return self._original.run(names, self.inputs)


class _OnGpu(_OnnxRuntime):
    """ONNX Runtime on a GPU. Inputs and outputs are on the host, like those of an executable."""

    kind = "onnxruntime-cuda"
    providers: tuple[str, ...] = ("CUDAExecutionProvider",)
    """The compared provider, then the providers of unsupported nodes."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Additional environment variables of this process."""

    def __init__(
        self,
        path: str,
        inputs: dict[str, np.ndarray],
        threads: int,
        options: Mapping[str, str],
    ) -> None:
        os.environ.update(self.environment)
        Runner.__init__(self, inputs)
        open_libraries(PROVIDER_LIBRARIES[self.kind])
        first, *fallbacks = self.providers
        providers: list[Provider] = [(first, dict(options)), *fallbacks]
        self._session = open_file(path, session_options(threads), providers)
        if first not in (running := self._session.get_providers()):
            raise RuntimeError(f"{first} does not start here: only {', '.join(running)} do")


class _TensorRtTf32(_OnGpu):
    """TensorRT with its default precision: TF32."""

    kind = "tensorrt"
    providers = ("TensorrtExecutionProvider", "CUDAExecutionProvider")


class _TensorRt(_TensorRtTf32):
    environment = FULL_PRECISION


class _OpenVino(Runner):
    precision = "f32"

    def __init__(self, path: str, inputs: dict[str, np.ndarray], threads: int) -> None:
        super().__init__(inputs)
        openvino = import_openvino()
        core = openvino.Core()
        self._model = core.read_model(path)
        self._model.reshape({name: list(value.shape) for name, value in inputs.items()})
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": self.precision,
        }
        self._compiled = core.compile_model(self._model, "CPU", settings)

    def __call__(self) -> object:
        return self._compiled(self.inputs)

    def outputs(self, names: Sequence[str]) -> list[np.ndarray]:
        """Return outputs by name, else by position: OpenVINO renames one of two equal outputs."""
        results = self._compiled(self.inputs)
        places = {name: n for n, out in enumerate(self._model.outputs) for name in out.get_names()}
        return [results[places.get(name, place)] for place, name in enumerate(names)]


class _OpenVinoBf16(_OpenVino):
    precision = "bf16"


_ON_SAMPLES: Mapping[str, Callable[[Path, RunOn], object]] = MappingProxyType(
    {"answer": write_expected, "check": largest_errors, "compare": differences}
)

KINDS: dict[str, Callable[..., Runner]] = {
    "executable": _Executable,
    "onnxruntime": _OnnxRuntime,
    "onnxruntime-cuda": _OnGpu,
    "tensorrt": _TensorRt,
    "tensorrt-tf32": _TensorRtTf32,
    "openvino": _OpenVino,
    "openvino-bf16": _OpenVinoBf16,
    "original": _Original,
}


def main() -> None:
    die_with_parent(int(sys.argv[1]))  # a hanging process does not notice the end of its pipe
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not corrupt the answers
    request = json.loads(sys.stdin.readline())
    stored = load_arrays(Path(request["inputs"]))
    inputs = {name: np.asarray(stored[name], order="C") for name in request["order"]}
    try:
        make = KINDS[request["kind"]]
        device = Target(request["device"])
        arguments: dict[str, Any] = {"device": device} if device.is_gpu else {}
        if request["signature"] is not None:
            arguments["signature"] = read_signature(request["signature"])
        arguments |= {"options": request["options"]} if request["options"] else {}
        run = make(request["path"], inputs, request["threads"], **arguments)
        run()
        _pin_threads(request["cpus"])
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the reason
        _answer(answers, {"error": f"{type(error).__name__}: {_first_line(error)}"})
        return
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        try:
            _answer(answers, _execute(run, *line.strip().partition(" ")[::2]))
        except (RuntimeError, ValueError, OSError) as error:
            _answer(answers, {"error": f"{type(error).__name__}: {_first_line(error)}"})


def _pin_threads(cpus: Sequence[int]) -> None:
    """Pin all threads of this process to these processors, after all are started."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cpus)


def _execute(run: Runner, command: str, operand: str) -> object:
    match command:
        case "profile" if isinstance(run, _Executable):
            return run.profile(int(operand))
        case "save":
            request = json.loads(operand)
            return _save(run, request["file"], request["names"])
        case "answer" | "check" | "compare":
            folder = Path(operand)
            names = json.loads((folder / "outputs.json").read_text())["names"]
            return _ON_SAMPLES[command](folder, lambda values: run.run_on(values, names))
    return _timed(run, int(command))


def _timed(run: Runner, calls: int) -> list[float]:
    samples = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        run()
        samples.append((time.perf_counter_ns() - start) * 1e-9)
    return samples


def _save(run: Runner, file: str, names: Sequence[str]) -> int:
    outputs = run.outputs(names)
    np.savez(file, *outputs)
    return len(outputs)


def _first_line(error: Exception) -> str:
    """Return the first line of a message, without numbers: they may be values of inputs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return mask_numbers(lines[0][:300]) if lines else ""


def _answer(pipe: TextIO, value: object) -> None:
    pipe.write(json.dumps(value) + "\n")
    pipe.flush()


if __name__ == "__main__":
    main()

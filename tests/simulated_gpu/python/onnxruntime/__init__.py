"""ONNX Runtime's Python package with execution providers for the simulated GPU: the real one, changed.

A provider is available if its file is in the toolkit (`CUDA_HOME`). A session with one computes on the CPU
and logs its options to SIMULATED_GPU_LOG. The provider in SIMULATED_ONNXRUNTIME_BROKEN does not start: the
session falls back to the other ones, like a real session.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
FILES = {"TensorrtExecutionProvider": "tensorrt", "CUDAExecutionProvider": "cuda"}


def real():
    spec = PathFinder.find_spec(
        __name__, [entry for entry in sys.path if Path(entry).resolve() != HERE]
    )
    module = module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)
    return module


def change(module):
    lib = Path(os.environ["CUDA_HOME"]) / "lib"
    named = [
        name for name in FILES if (lib / f"libonnxruntime_providers_{FILES[name]}.so").exists()
    ]
    broken = os.environ.get("SIMULATED_ONNXRUNTIME_BROKEN", "")

    class InferenceSession(module.InferenceSession):
        def __init__(self, path_or_bytes, sess_options=None, providers=None, **extra):
            self._on_gpu = []
            for provider in providers or ():
                name, options = provider if isinstance(provider, tuple) else (provider, {})
                if name in named and name != broken:
                    self._on_gpu.append(name)
                    log(" ".join([name, *(f"{key}={options[key]}" for key in sorted(options))]))
            super().__init__(path_or_bytes, sess_options, ["CPUExecutionProvider"], **extra)

        def get_providers(self):
            return [*self._on_gpu, *super().get_providers()]

    module.InferenceSession = InferenceSession
    module.get_available_providers = lambda: [*named, "CPUExecutionProvider"]


def log(line):
    with Path(os.environ["SIMULATED_GPU_LOG"]).open("a") as file:
        file.write(f"framework {line}\n")


change(real())

"""Baseline frameworks of the gate: the original file in ONNX Runtime and OpenVINO.

On every machine both run on the CPU; for a GPU also ONNX Runtime with its CUDA and its TensorRT provider, if
the installed ONNX Runtime lists them. They are configured as by a user: nodes without TensorRT support go to
the CUDA provider, and from there to the CPU. A provider that does not start is detected in the target's
process. With reduced precision in plans, each framework with such a mode runs in it too, and in float32.
"""

import hashlib
from collections.abc import Set
from pathlib import Path

import onnxruntime

from collage.backends.nvidia.architecture import tf32_reason
from collage.backends.nvidia.onnxruntime_cuda import provider_options
from collage.backends.nvidia.tensorrt import ALLOWED
from collage.backends.nvidia.toolchain import TF32
from collage.frontend.float16 import file_float_types
from collage.runtime.cpu import bf16_reason
from collage.runtime.target import Target
from collage.verify.benchmark_target import BenchmarkTarget

ON_CPU = "openvino-bf16"
REDUCED = frozenset({ON_CPU, f"onnxruntime-cuda-{TF32}", f"tensorrt-{TF32}"})
"""Baselines that compute in less than float32."""
ENGINE_S = 900.0
"""Time limit of an answer from a target that builds the engine of a complete model, in seconds."""


def original_frameworks(
    model: Path, *, may_reduce: bool, device: Target = Target.CPU, engines: Path | None = None
) -> list[BenchmarkTarget]:
    """Return the baseline frameworks for a model.

    Args:
        model: original ONNX file.
        may_reduce: whether plans, and so frameworks, may compute in less than float32.
        device: device of the plans, default the processor.
        engines: folder of cached engines of complete models; None: built every time.
    """
    kinds = ["onnxruntime", "openvino"]
    if may_reduce and not bf16_reason():
        kinds.append(ON_CPU)
    frameworks = [BenchmarkTarget(kind, kind, model) for kind in kinds]
    if not device.is_gpu:
        return frameworks

    types = file_float_types(model)
    frameworks += _on_gpu(model, types, engines)
    if may_reduce and not tf32_reason() and "float32" in types:
        frameworks += _on_gpu(model, types, engines, reduced=True)
    return frameworks


def _on_gpu(
    model: Path, types: Set[str], engines: Path | None, *, reduced: bool = False
) -> list[BenchmarkTarget]:
    providers, frameworks, suffix = (
        onnxruntime.get_available_providers(),
        [],
        f"-{TF32}" if reduced else "",
    )
    if "CUDAExecutionProvider" in providers:
        name, options = f"onnxruntime-cuda{suffix}", provider_options(rounds=reduced)
        frameworks.append(BenchmarkTarget(name, "onnxruntime-cuda", model, options=options))
    if "TensorrtExecutionProvider" in providers:
        name, options = f"tensorrt{suffix}", _tensorrt_options(model, types, engines, suffix)
        frameworks.append(BenchmarkTarget(name, name, model, options=options, patience_s=ENGINE_S))
    return frameworks


def _tensorrt_options(
    model: Path, types: Set[str], engines: Path | None, suffix: str
) -> dict[str, str]:
    """Allow the types of the model, and separate its engine from those of other models."""
    options = {option: "1" for dtype, option in ALLOWED.items() if dtype in types}
    if engines is None:
        return options
    folder = engines / f"{hashlib.sha256(model.read_bytes()).hexdigest()}{suffix}"
    return options | {
        "trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1", "trt_timing_cache_path": str(engines),
    }  # fmt: skip

"""The original frameworks on the original file: whom the gate compares a plan with.

On every machine they are ONNX Runtime and OpenVINO on the CPU; on a GPU also ONNX Runtime with its CUDA and
with its TensorRT provider, where the installed ONNX Runtime names them. These get what a user would give
them: nodes that TensorRT does not take go to the CUDA provider, and from there to the CPU. Whether a
provider really runs shows in the contender's own process, which says so when it does not. Where plans may
compute in less than float32, each framework that can does too, beside itself in float32.
"""

import hashlib
from collections.abc import Set
from pathlib import Path

from collage.backends.nvidia.architecture import tf32_reason
from collage.backends.nvidia.onnxruntime_cuda import provider_options
from collage.backends.nvidia.tensorrt import ALLOWED
from collage.backends.nvidia.toolchain import TF32
from collage.runtime.cpu import bf16_reason
from collage.verify.benchmark_target import Contender

ON_CPU = "openvino-bf16"
REDUCED = frozenset({ON_CPU, f"onnxruntime-cuda-{TF32}", f"tensorrt-{TF32}"})
"""Baselines that compute in less than float32."""
ENGINE_S = 900.0
"""A contender that builds the engine of a whole model may be silent for so long."""


def original_frameworks(
    model: Path, *, may_reduce: bool, device: str = "cpu", engines: Path | None = None
) -> list[Contender]:
    """Return the frameworks on the original file that a plan is compared with.

    Args:
        model: the original file.
        may_reduce: plans may compute in less than float32, so the frameworks may too.
        device: where the plans run.
        engines: where engines of whole models are kept; None builds them every time.
    """
    kinds = ["onnxruntime", "openvino"]
    if may_reduce and not bf16_reason():
        kinds.append(ON_CPU)
    frameworks = [Contender(kind, kind, model) for kind in kinds]
    if device == "cpu":
        return frameworks
    from collage.frontend.float16 import file_float_types

    types = file_float_types(model)
    frameworks += _on_gpu(model, types, engines)
    if may_reduce and not tf32_reason() and "float32" in types:
        frameworks += _on_gpu(model, types, engines, rounds=True)
    return frameworks


def _on_gpu(
    model: Path, types: Set[str], engines: Path | None, *, rounds: bool = False
) -> list[Contender]:
    import onnxruntime

    providers, frameworks, suffix = (
        onnxruntime.get_available_providers(),
        [],
        f"-{TF32}" if rounds else "",
    )
    if "CUDAExecutionProvider" in providers:
        name, options = f"onnxruntime-cuda{suffix}", provider_options(rounds=rounds)
        frameworks.append(Contender(name, "onnxruntime-cuda", model, options=options))
    if "TensorrtExecutionProvider" in providers:
        name, options = f"tensorrt{suffix}", _tensorrt_options(model, types, engines, suffix)
        frameworks.append(Contender(name, name, model, options=options, patience_s=ENGINE_S))
    return frameworks


def _tensorrt_options(
    model: Path, types: Set[str], engines: Path | None, suffix: str
) -> dict[str, str]:
    """Allow the types that the model has, and keep its engine apart from those of other models."""
    options = {option: "1" for dtype, option in ALLOWED.items() if dtype in types}
    if engines is None:
        return options
    folder = engines / f"{hashlib.sha256(model.read_bytes()).hexdigest()}{suffix}"
    return options | {
        "trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1", "trt_timing_cache_path": str(engines),
    }  # fmt: skip

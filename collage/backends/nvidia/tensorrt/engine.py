"""A cache of TensorRT engines.

ONNX Runtime's provider writes an engine as an ONNX model of one node (an EP context). The cache key is the
digest of the region, the options, the versions of the libraries and the GPU. TensorRT's own timing cache is
stored beside the engines and shortens later builds. Files are renamed into place, so two processes that build
the same engine both get a complete file.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from collage.backends.base import PluginKernel
from collage.backends.nvidia.providers import essence
from collage.backends.nvidia.tensorrt.build import build
from collage.backends.nvidia.toolchain import TF32
from collage.errors import BackendError
from collage.runtime.gpu import compute_capability, gpu_name
from collage.runtime.plugin import FULL_PRECISION

ENGINES = "engines"
"""Folder of the engines in the local store."""


def kept_engine(
    kernel: Callable[[dict[str, str]], PluginKernel],
    identity: str,
    folder: Path,
    *,
    rounds: bool = False,
) -> bytes:
    """Return the model with the engine of a kernel, from the cache if possible.

    Args:
        kernel: function from additional provider options to the kernel of the region's own model.
        identity: the backend's identity, with the versions of its libraries.
        folder: folder of the cache, created if missing.
        rounds: whether TF32 is allowed for float32.

    Raises:
        BackendError: TensorRT refuses the region, with its own message.
    """
    plain = kernel({})
    allowed = (TF32,) if rounds else tuple(FULL_PRECISION)
    key = (identity, gpu_name(), compute_capability(), *allowed)
    digest = hashlib.sha256("\0".join(key).encode() + plain.blob).hexdigest()
    engine = folder / f"{digest}.onnx"
    if not engine.is_file():
        # TensorRT's timings depend on the kernels it may choose, so those with TF32 are separate.
        timings = folder / TF32 if rounds else folder
        timings.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="engine-") as scratch:
            _build(kernel, timings, Path(scratch) / "engine.onnx", rounds=rounds)
            os.replace(Path(scratch) / "engine.onnx", engine)
    return engine.read_bytes()


def _build(
    kernel: Callable[[dict[str, str]], PluginKernel], timings: Path, file: Path, *, rounds: bool
) -> None:
    builder = kernel({
        "trt_dump_ep_context_model": "1", "trt_ep_context_embed_mode": "1",
        "trt_ep_context_file_path": str(file), "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(timings),
    })  # fmt: skip
    try:
        build(builder.blob, rounds=rounds)
    except RuntimeError as error:
        raise BackendError(essence(error)) from error
    if not file.is_file():
        raise BackendError("TensorRT left no engine: it does not take the whole region")

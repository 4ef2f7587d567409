"""Engines, built once for each content and kept.

ONNX Runtime's provider leaves an engine as an ONNX model whose one node holds it (an EP context). The file
is kept under the digest of the region, the options, the versions of the libraries and the GPU: for
another of these the engine is built anew. TensorRT's own timings are kept beside, so that later engines
take less long. Two processes that build the same one both end with a whole file.
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
"""Their folder in the local store."""


def kept_engine(
    kernel: Callable[[dict[str, str]], PluginKernel],
    identity: str,
    folder: Path,
    *,
    rounds: bool = False,
) -> bytes:
    """Return the model that holds the engine of a kernel, from `folder` where it was built before.

    Args:
        kernel: makes the kernel from the region's own model, with further options of the provider.
        identity: of the backend, with the versions of its libraries.
        folder: where engines are kept; made when it is missing.
        rounds: TensorRT may round float32 to TF32.

    Raises:
        BackendError: TensorRT refuses the region, in its own words.
    """
    plain = kernel({})
    allowed = (TF32,) if rounds else tuple(FULL_PRECISION)
    facts = (identity, gpu_name(), compute_capability(), *allowed)
    digest = hashlib.sha256("\0".join(facts).encode() + plain.blob).hexdigest()
    kept = folder / f"{digest}.onnx"
    if not kept.is_file():
        timings = (
            folder / TF32 if rounds else folder
        )  # TensorRT's own, of kernels that may be chosen
        timings.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="engine-") as made:
            _build(kernel, timings, Path(made) / "engine.onnx", rounds=rounds)
            os.replace(Path(made) / "engine.onnx", kept)
    return kept.read_bytes()


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

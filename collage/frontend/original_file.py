"""The original model for a bundle: as one string of bytes, or as files.

Two things change: version stamps without support in ONNX Runtime (`frontend.onnx_versions`), and
operators in training mode, which an optimised ONNX Runtime computes otherwise (`frontend.training_mode`).
"""

from pathlib import Path

import onnx
from onnx import inliner

from collage.errors import ModelError
from collage.frontend.model_files import open_model
from collage.frontend.onnx_versions import make_readable
from collage.frontend.training_mode import lower_training_mode, may_train
from collage.runtime.function_names import MAIN

ORIGINAL_STEM = "original"
"""Stem of the original model's files in a bundle."""
MAX_PROTOBUF_BYTES = (1 << 31) - 1
"""Size limit of a protobuf message."""


def original_bytes(path: Path) -> bytes:
    """Return the ONNX file at `path` with its external weights inside.

    Raises:
        ModelError: the file is unreadable, or larger than a protobuf message with its weights.
    """
    with open_model(path) as files:
        if files.size_bytes > MAX_PROTOBUF_BYTES:
            raise ModelError(
                f"{path}: {files.size_bytes} bytes with its weights are too many for one file"
            )
        model = onnx.load_from_string(files.data)
        files.fill(model)
        if may_train(files.data) and model.functions:
            model = inliner.inline_local_functions(model)
        lowered = lower_training_mode(model)
        changed = make_readable(model) or lowered or files.external
        return bytes(model.SerializeToString()) if changed else files.data


def write_original(path: Path, folder: Path, entry: str = MAIN) -> tuple[Path, ...]:
    """Write the model at `path` into `folder`, as one file, or as two where it is too large for one.

    Args:
        path: ONNX file, with its external data beside it.
        folder: folder to write into.
        entry: entry of the model, which names the files.

    Returns:
        The ONNX file, and the file of its external data if there is one.

    Raises:
        ModelError: the model is unreadable.
    """
    stem = ORIGINAL_STEM if entry == MAIN else f"{ORIGINAL_STEM}.{entry}"
    file, weights = folder / f"{stem}.onnx", folder / f"{stem}.weights"
    with open_model(path) as files:
        is_small = files.size_bytes <= MAX_PROTOBUF_BYTES
    if is_small:
        file.write_bytes(original_bytes(path))
        return (file,)
    with open_model(path) as files:
        model = onnx.load_from_string(files.data)
        files.fill(model)
        if may_train(files.data) and model.functions:
            model = inliner.inline_local_functions(model)
        lower_training_mode(model)
        make_readable(model)
    onnx.save_model(
        model, file, save_as_external_data=True, location=weights.name, size_threshold=1024
    )
    return file, weights

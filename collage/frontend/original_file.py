"""The original model as one string of bytes, for a bundle.

The only change is to version stamps without support in ONNX Runtime (`frontend.onnx_versions`).
"""

from pathlib import Path

import onnx

from collage.errors import ModelError
from collage.frontend.model_files import open_model
from collage.frontend.onnx_versions import make_readable

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
        changed = make_readable(model) or files.external
        return bytes(model.SerializeToString()) if changed else files.data

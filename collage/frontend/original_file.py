"""The original file as one string of bytes, as a bundle keeps it.

Nothing is changed but the stamps of versions that ONNX Runtime does not read (`frontend.versions`).
"""

from pathlib import Path

import onnx

from collage.errors import ModelError
from collage.frontend.model_files import open_model
from collage.frontend.onnx_versions import make_readable

LARGEST_BYTES = (1 << 31) - 1
"""Of a message in protobuf's format."""


def original_bytes(path: Path) -> bytes:
    """Return the ONNX file at `path` with the weights that lie in other files.

    Raises:
        ModelError: it cannot be read, or would be larger than a protobuf message may be.
    """
    with open_model(path) as files:
        if files.size_bytes > LARGEST_BYTES:
            raise ModelError(
                f"{path}: {files.size_bytes} bytes with its weights are too many for one file"
            )
        model = onnx.load_from_string(files.data)
        files.fill(model)
        changed = make_readable(model) or files.external
        return bytes(model.SerializeToString()) if changed else files.data

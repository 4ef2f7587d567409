"""The original file as one string of bytes, as a bundle keeps it.

Nothing is changed but the stamps of versions that ONNX Runtime does not read (`frontend.versions`).
"""

from pathlib import Path

import onnx

from collage.errors import ModelError
from collage.frontend.load import external_names
from collage.frontend.versions import make_readable, readable_bytes

LARGEST_BYTES = (1 << 31) - 1
"""Of a message in protobuf's format."""


def original_bytes(path: Path) -> bytes:
    """Return the ONNX file at `path` with the weights that lie in other files.

    Raises:
        ModelError: it cannot be read, or would be larger than a protobuf message may be.
    """
    if not external_names(path):
        return readable_bytes(path) or path.read_bytes()
    try:
        model = onnx.load(path)
        make_readable(model)
        size_bytes = model.ByteSize()
        if size_bytes > LARGEST_BYTES:
            raise ModelError(
                f"{path}: {size_bytes} bytes with its weights are too many for one file"
            )
        return bytes(model.SerializeToString())
    except (ValueError, OSError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path}: its external data cannot be read: {error}") from error

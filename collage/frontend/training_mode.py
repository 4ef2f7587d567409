"""Operators in training mode as arithmetic, in files that an optimising framework runs.

ONNX Runtime's optimiser shares the running statistics of BatchNormalization (`frontend.batch_statistics`),
and removes Dropout although it draws (`frontend.training_dropout`). As arithmetic both keep their meaning.
"""

import mmap
from pathlib import Path

import onnx
from onnx import inliner

from collage.frontend.batch_statistics import lower_batch_statistics
from collage.frontend.training_dropout import lower_training_dropout

_NAMES = (b"training_mode", b"Dropout")
"""Bytes that a file with such an operator has."""


def may_train(content: bytes | mmap.mmap) -> bool:
    """Tell whether a file has the names of operators with a training mode, without parsing it."""
    return any(content.find(name) >= 0 for name in _NAMES)


def lower_training_mode(model: onnx.ModelProto) -> bool:
    """Replace every operator in training mode, in place; return whether there was one.

    Local functions must have been inlined.
    """
    has_statistics = lower_batch_statistics(model)
    return lower_training_dropout(model) or has_statistics


def lowered_model(path: Path) -> onnx.ModelProto | None:
    """Return the file's model with such operators lowered, or None without one.

    Weights in other files stay there.
    """
    if not _file_may_train(path):
        return None
    model = onnx.load(path, load_external_data=False)
    if model.functions:
        model = inliner.inline_local_functions(model)
    return model if lower_training_mode(model) else None


def _file_may_train(path: Path) -> bool:
    with path.open("rb") as stream:
        if not path.stat().st_size:
            return False
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return may_train(content)

"""The original file in ONNX Runtime, fp32: the numbers that every plan is held against."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

    from collage.frontend import Function


def open_original(model: Path | str) -> "onnxruntime.InferenceSession":
    """Open the original file with ONNX Runtime's basic optimisations only."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def original_outputs(
    model: Path, function: "Function", inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original file once and return its outputs by name."""
    names = list(function.graph.outputs)
    return dict(zip(names, open_original(model).run(names, dict(inputs)), strict=True))

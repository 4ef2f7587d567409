"""The small model of the pipeline's tests, quantised by ONNX Runtime to QDQ form."""

from pathlib import Path

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from tests.support.models import small_model


class _Calibration(CalibrationDataReader):
    def __init__(self) -> None:
        draws = [np.random.default_rng(seed).standard_normal((1, 3, 24, 24)) for seed in range(4)]
        self._feeds = iter([{"x": draw.astype(np.float32)} for draw in draws])

    def get_next(self):
        return next(self._feeds, None)


def quantised_model(folder: Path) -> Path:
    """Write the model and return its path."""
    file = folder / "quantised.onnx"
    quantize_static(
        str(small_model(folder / "small.onnx")),
        str(file),
        _Calibration(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return file

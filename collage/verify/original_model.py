"""The original file in ONNX Runtime, fp32: the reference outputs of every plan.

ONNX Runtime has no kernels for bfloat16 on a CPU. A file in bfloat16 runs in float32, and its outputs are
rounded once: a more accurate reference than any plan.
"""

import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Entry of session options: folder of external weights for a model in bytes."""

Provider = str | tuple[str, dict[str, str]]


class Original:
    """The original file, ready to run."""

    def __init__(self, model: Path | str, float_types: Set[str]) -> None:
        """Open the file; `float_types` are the names of its floating-point types."""
        self._narrow: frozenset[str] = frozenset()
        if "bfloat16" in float_types:
            self._session, self._narrow = _widened(model)
        else:
            self._session = _session(model)

    def run(self, names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs called `names`; all outputs without names."""
        from onnx import TensorProto

        from collage.frontend.float16 import retyped_array

        bfloat16, wide = TensorProto.BFLOAT16, TensorProto.FLOAT
        output_names = list(names) or [output.name for output in self._session.get_outputs()]
        feed = {name: retyped_array(value, bfloat16, wide) for name, value in inputs.items()}
        outputs = self._session.run(output_names, feed)
        return [
            retyped_array(value, wide, bfloat16) if name in self._narrow else value
            for name, value in zip(output_names, outputs, strict=True)
        ]


def _session(model: Path | str) -> "onnxruntime.InferenceSession":
    """Open a file with ONNX Runtime's basic optimisations only."""
    import onnxruntime

    from collage.frontend.onnx_versions import make_readable
    from collage.frontend.training_mode import lowered_model

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    lowered = lowered_model(Path(model))
    if lowered is None:
        return open_file(model, options, ["CPUExecutionProvider"])
    make_readable(lowered)
    options.add_session_config_entry(WEIGHTS_FOLDER, str(Path(model).parent.absolute()))
    return onnxruntime.InferenceSession(
        lowered.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def open_file(
    model: Path | str, options: "onnxruntime.SessionOptions", providers: Sequence[Provider]
) -> "onnxruntime.InferenceSession":
    """Open a file in ONNX Runtime, with lowered versions if only that makes it readable.

    Raises:
        ModelError: the file needs ONNX versions beyond the installed ONNX Runtime.
    """
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(model), options, providers=list(providers))
    except Exception:  # ONNX Runtime's errors share no base class
        from collage.frontend.onnx_versions import readable_bytes

        readable = readable_bytes(Path(model))
        if readable is None:
            raise
    options.add_session_config_entry(WEIGHTS_FOLDER, str(Path(model).parent.absolute()))
    return onnxruntime.InferenceSession(readable, options, providers=list(providers))


def _widened(model: Path | str) -> "tuple[onnxruntime.InferenceSession, frozenset[str]]":
    """Open a file with bfloat16 widened to float32; also return the names of its bfloat16 outputs."""
    import onnx

    from collage.frontend.float16 import widened
    from collage.frontend.load import read_proto
    from collage.frontend.onnx_versions import make_readable
    from collage.frontend.training_mode import lower_training_mode

    bfloat16, loaded = onnx.TensorProto.BFLOAT16, read_proto(Path(model))
    narrow = frozenset(
        output.name
        for output in loaded.graph.output
        if output.type.tensor_type.elem_type == bfloat16
    )
    lower_training_mode(loaded)
    wide: onnx.ModelProto = widened(loaded)
    make_readable(wide)
    with tempfile.TemporaryDirectory(prefix="collage-original-") as folder:
        file = Path(folder) / "wide.onnx"
        onnx.save(wide, file, save_as_external_data=True, location="weights")
        return _session(file), narrow

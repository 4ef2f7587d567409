"""The original file in ONNX Runtime, fp32: the numbers that every plan is held against.

ONNX Runtime has no kernels for bfloat16 on a CPU. A file in bfloat16 is run as what it says in float32,
and its outputs are rounded once: a reference that is better than any plan can be.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

    from collage.frontend import Function


class Original:
    """The original file, ready to run."""

    def __init__(self, model: Path | str) -> None:
        self._narrow = narrow_outputs(model)
        self._session = _session(model) if self._narrow is None else _widened(model)

    def run(self, names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs called `names`, all of them where none is."""
        from onnx import TensorProto

        from collage.frontend.half import retyped_array

        bfloat16, wide = TensorProto.BFLOAT16, TensorProto.FLOAT
        wanted = list(names) or [output.name for output in self._session.get_outputs()]
        feed = {name: retyped_array(value, bfloat16, wide) for name, value in inputs.items()}
        found = self._session.run(wanted, feed)
        return [
            retyped_array(value, wide, bfloat16) if name in (self._narrow or ()) else value
            for name, value in zip(wanted, found, strict=True)
        ]


def original_outputs(
    model: Path, function: "Function", inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original file once and return its outputs by name."""
    names = list(function.graph.outputs)
    return dict(zip(names, Original(model).run(names, inputs), strict=True))


def narrow_outputs(model: Path | str) -> frozenset[str] | None:
    """Return which outputs of a file with bfloat16 in it are of that type; None for other files."""
    import onnx

    loaded = onnx.load(model, load_external_data=False)
    bfloat16, graph = onnx.TensorProto.BFLOAT16, loaded.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    types = [value.type.tensor_type.elem_type for value in values]
    if bfloat16 not in (*types, *(one.data_type for one in graph.initializer)):
        return None
    outputs = (one for one in graph.output if one.type.tensor_type.elem_type == bfloat16)
    return frozenset(one.name for one in outputs)


def _session(model: Path | str) -> "onnxruntime.InferenceSession":
    """Open a file with ONNX Runtime's basic optimisations only."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _widened(model: Path | str) -> "onnxruntime.InferenceSession":
    import onnx

    from collage.frontend.half import retyped

    wide: onnx.ModelProto = retyped(
        onnx.load(model), onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    )
    with tempfile.TemporaryDirectory(prefix="collage-original-") as folder:
        file = Path(folder) / "wide.onnx"
        onnx.save(wide, file, save_as_external_data=True, location="weights")
        return _session(file)

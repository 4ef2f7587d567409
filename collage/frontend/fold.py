"""Constant folding by ONNX Runtime's offline basic optimiser.

The optimiser folds constants, batch norms and shape chains and stays in the standard operator set. Two
exceptions need care. It turns `MatMul + Add` of any rank into `Reshape + Gemm + Reshape` and so hides the
matrix product from every other toolchain; that fusion is disabled. And ONNX Runtime cannot load a few of
its own results; so the result is loaded once more, with the unfolded model as the fallback.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime

from collage.errors import ModelError
from collage.frontend.onnx_proto import STANDARD_DOMAINS, nodes_within, op_name
from collage.frontend.onnxruntime_session import (
    first_line,
    is_out_of_memory,
    refusal_reason,
    session,
    session_options,
)

_DISABLED_OPTIMIZERS = ["MatMulAddFusion"]
LARGE_MODEL_BYTES = 1 << 30
"""Models above this size are written with external data: a protobuf is limited to 2 GiB."""


def fold(model: onnx.ModelProto, work_dir: Path) -> tuple[onnx.ModelProto, str]:
    """Return the folded model, and a note: "", or the reason against folding."""
    with TemporaryDirectory(dir=work_dir) as folder:
        bound, folded = Path(folder) / "bound.onnx", Path(folder) / "folded.onnx"
        save_model(model, bound)
        reason = _optimise(bound, folded, large=_weight_bytes(model) > LARGE_MODEL_BYTES)
        result = model if reason else onnx.load(folded)
    added = _foreign_ops(result) - _foreign_ops(model)
    if added:
        reason = f"the optimiser added {', '.join(sorted(added))}"
    return (model, f"constants were not folded: {reason}") if reason else (result, "")


def _optimise(source: Path, target: Path, large: bool) -> str:
    options = session_options("ORT_ENABLE_BASIC")
    options.optimized_model_filepath = str(target)
    if large:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", target.name + ".data"
        )
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
        )
    try:
        onnxruntime.InferenceSession(
            str(source),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_DISABLED_OPTIMIZERS,
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        if is_out_of_memory(error):
            raise MemoryError(first_line(error)) from error
        _require_loadable(source, error)
        return first_line(error)
    try:
        session(target)
    except Exception as error:  # noqa: BLE001 - any exception: use the original model
        return first_line(error)
    return ""


def _require_loadable(source: Path, error: Exception) -> None:
    try:
        session(source)
    except Exception:  # noqa: BLE001 - the first error is the cause
        raise ModelError(
            f"ONNX Runtime does not load the model with these shapes: {refusal_reason(error)}"
        ) from error


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write `model`, with external data beside it if it is large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if _weight_bytes(model) <= LARGE_MODEL_BYTES:
        onnx.save(model, path)
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (path.parent / (path.name + ".data")).unlink(missing_ok=True)
    onnx.save(copy, path, save_as_external_data=True, location=path.name + ".data")


def _weight_bytes(model: onnx.ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _foreign_ops(model: onnx.ModelProto) -> set[str]:
    return {
        op_name(inner)
        for node in model.graph.node
        for inner in nodes_within(node)
        if inner.domain not in STANDARD_DOMAINS
    }

"""Types of outputs that a model's file does not state, which it need not.

ONNX's inference and ONNX Runtime read the model's bytes in C++: a hostile model can crash or stall them. So
a child process with limits asks them (`frontend.limited_process`). ONNX Runtime is asked where the inference
has no answer, as for operators of its own domain; such an output stays without a shape.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from collage.errors import ModelError
from collage.frontend.isolated_import import file_allowance
from collage.frontend.limited_process import Question, answer_limited, ask_limited
from collage.frontend.model_files import open_model
from collage.frontend.onnxruntime_session import is_out_of_memory, refusal_reason, session
from collage.frontend.onnxruntime_types import runtime_type
from collage.frontend.original_file import write_original

_CACHED_MODELS = 16


@dataclass(frozen=True)
class OutputTypes:
    """Types of outputs.

    Attributes:
        types: types by name of the output.
        reason: why ONNX Runtime has no type for the others; "" if there are none.
    """

    types: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    reason: str = ""


def find_output_types(path: Path, sha256: str, names: Sequence[str]) -> OutputTypes:
    """Return the types of the outputs `names` of the model at `path`.

    Args:
        path: ONNX file, with its external data beside it.
        sha256: digest of its files: equal ones are asked once.
        names: names of outputs.

    Raises:
        ModelError: the model crashes the libraries that read it, or takes more than the limits of import.
    """
    texts, reason = _ask(path.resolve(), sha256, tuple(names))
    return OutputTypes(
        {name: onnx.TypeProto.FromString(bytes.fromhex(text)) for name, text in texts}, reason
    )


@lru_cache(_CACHED_MODELS)
def _ask(
    path: Path, sha256: str, names: tuple[str, ...]
) -> tuple[tuple[tuple[str, str], ...], str]:
    question = {"path": str(path), "names": list(names)}
    with TemporaryDirectory(prefix="collage-types-") as folder:
        answer = ask_limited(__name__, question, file_allowance(path), path, folder=Path(folder))
    types = tuple((str(name), str(text)) for name, text in answer["types"].items())
    return types, str(answer["reason"])


def _answer(question: Question) -> Mapping[str, object]:
    """Find the types, in the child."""
    path, names = Path(question["path"]), question["names"]
    types, reason = _inferred_types(path, names), ""
    if missing := [name for name in names if name not in types]:
        runtime_types, reason = _runtime_types(path, missing)
        types |= runtime_types
    texts = {name: value.SerializeToString().hex() for name, value in types.items()}
    return {"types": texts, "reason": reason}


def _inferred_types(path: Path, names: Collection[str]) -> dict[str, onnx.TypeProto]:
    """Return what ONNX's inference says."""
    with open_model(path) as files:
        model = onnx.load_model_from_string(files.data)
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}  # ONNX Runtime is asked next
    return {
        value.name: value.type
        for value in inferred.graph.output
        if value.name in names and value.type.WhichOneof("value")
    }


def _runtime_types(path: Path, names: Collection[str]) -> tuple[dict[str, onnx.TypeProto], str]:
    """Return what ONNX Runtime says of the model as it runs in a bundle, and why it has no answer."""
    with TemporaryDirectory() as folder:
        file, *_ = write_original(path, Path(folder))
        try:
            outputs = session(file).get_outputs()
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            if is_out_of_memory(error):
                raise MemoryError(str(error)) from error
            return {}, refusal_reason(error)
    types, reasons = {}, []
    for output in outputs:
        if output.name in names:
            try:
                types[output.name] = runtime_type(output.type)
            except ModelError as error:
                reasons.append(str(error))
    return types, "; ".join(reasons)


if __name__ == "__main__":
    answer_limited(_answer)

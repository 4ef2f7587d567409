"""Reference run in a child process: one set of inputs, all intermediate values, the original's outputs.

This is the first run of a possibly hostile model. Import bounds the predictable resources; an endless loop or
a data-dependent shape shows only here. So the child has limits (`frontend.limited_process`), and answers
with files.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend import Function, Model
from collage.frontend.inputs import (
    load_reference,
    random_inputs,
    reference_values,
    run_explained,
    save_reference,
)
from collage.frontend.isolated_import import run_allowance
from collage.frontend.limited_process import Question, answer_limited, ask_limited
from collage.frontend.load_function import load_function
from collage.verify.original_model import Original

_EXPECTED = "expected"


@dataclass(frozen=True)
class Samples:
    """One set of inputs with the original model's outputs; intermediate values are in `reference_dir`."""

    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    reference_dir: Path


def sample(model: Model, function: Function, seed: int, work_dir: Path) -> Samples:
    """Draw inputs and run the original model on them.

    Raises:
        ModelError: ONNX Runtime cannot run it, or not within the limits.
    """
    folder = work_dir / f"reference-{function.name}"
    question = {
        "path": os.path.abspath(model.path),
        "float_types": sorted(model.float_types),
        "simplified": str(function.simplified.resolve()),
        "function": function.name,
        "seed": seed,
        "folder": str(folder.resolve()),
    }
    allowance = run_allowance(model.path, function)
    ask_limited(__name__, question, allowance, model.path, folder=work_dir)
    values = load_reference(folder)
    inputs = {name: np.array(values[name]) for name in function.graph.inputs}
    expected = load_reference(folder / _EXPECTED)
    return Samples(inputs, {name: np.array(value) for name, value in expected.items()}, folder)


def _answer(question: Question) -> Mapping[str, Any]:
    """Run the model, in the child."""
    folder = Path(question["folder"])
    function = load_function(Path(question["simplified"]), question["function"])
    inputs = random_inputs(function, question["seed"])
    try:
        save_reference(reference_values(function, inputs), folder)
        expected = _original_outputs(question, function, inputs)
    except ModelError as error:
        raise ModelError(f"{question['path']}: {error}") from error
    save_reference(expected, folder / _EXPECTED)
    return {}


def _original_outputs(
    question: Question, function: Function, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original file once and return its outputs by name."""
    names = list(function.graph.outputs)
    with run_explained():
        original = Original(question["path"], frozenset(question["float_types"]))
        return dict(zip(names, original.run(names, inputs), strict=True))


if __name__ == "__main__":
    answer_limited(_answer)

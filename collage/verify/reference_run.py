"""Reference run in a child process: the sets of inputs, the original's outputs, all intermediate values.

The first set is the one that candidates are measured on. Further sets of the user judge complete plans.

This is the first run of a possibly hostile model. Import bounds the predictable resources; an endless loop or
a data-dependent shape shows only here. So the child has limits (`frontend.limited_process`), and answers
with files.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from collage.errors import ModelError
from collage.frontend import Function, Model
from collage.frontend.inputs import (
    input_sets,
    load_reference,
    random_inputs,
    reference_values,
    run_explained,
    save_reference,
)
from collage.frontend.isolated_import import run_allowance
from collage.frontend.limited_process import (
    Allowance,
    Question,
    answer_limited,
    ask_limited,
)
from collage.frontend.load_function import load_function
from collage.runtime.arrays import load_arrays, save_arrays
from collage.verify.original_model import Original

_INPUTS, _EXPECTED = "inputs", "expected"
_SAMPLE, _SETTINGS = "sample-{}.npz", "settings.npz"
_COPIES = 4
"""Copies of the sample sets in the child: read, completed, written, and fed."""


@dataclass(frozen=True)
class AccuracySample:
    """One set of inputs with the original model's outputs."""

    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


@dataclass(frozen=True)
class Samples:
    """The measured set of inputs with the original model's outputs, and further sets.

    Attributes:
        inputs: inputs that candidates and plans are measured on.
        expected: outputs of the original model for `inputs`.
        reference_dir: folder of all intermediate values for `inputs`.
        further: further sets that every plan is judged by.
        golden: golden data of the bundle where it is not the measured set: generated, without samples.
    """

    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    reference_dir: Path
    further: tuple[AccuracySample, ...] = ()
    golden: AccuracySample | None = None


def sample(
    model: Model, function: Function, seed: int, work_dir: Path, *, generates_golden: bool = False
) -> Samples:
    """Complete or draw inputs, and run the original model on them.

    Args:
        model: imported model.
        function: its function, with the user's samples.
        seed: seed of generated inputs.
        work_dir: folder for the values.
        generates_golden: whether the golden data must not hold the user's samples; default False.

    Raises:
        ModelError: ONNX Runtime cannot run it, or not within the limits.
    """
    folder = work_dir / f"reference-{function.name}"
    generates_golden &= bool(function.sample_sets)
    question = {
        "path": os.path.abspath(model.path),
        "float_types": sorted(model.float_types),
        "simplified": str(function.simplified.resolve()),
        "function": function.name,
        "seed": seed,
        "folder": str(folder.resolve()),
        "sample_sets": len(function.sample_sets),
        "generates_golden": generates_golden,
    }
    _write_samples(function, folder)
    allowance = _allowance(model, function)
    ask_limited(__name__, question, allowance, model.path, folder=work_dir)
    count = max(1, len(function.sample_sets)) + generates_golden
    first, *others = (_read_set(function, folder, number) for number in range(count))
    golden = others[-1] if generates_golden else None
    return Samples(first.inputs, first.expected, folder, further=tuple(others), golden=golden)


def _allowance(model: Model, function: Function) -> Allowance:
    """Return the limits of the runs on all sets."""
    one_run = run_allowance(model.path, function)
    size_bytes = sum(array.nbytes for arrays in function.sample_sets for array in arrays.values())
    count = len(function.sample_sets) + 1
    return Allowance(one_run.memory_bytes + _COPIES * size_bytes, count * one_run.cpu_s)


def _write_samples(function: Function, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_arrays(folder / _SETTINGS, function.settings)
    for number, arrays in enumerate(function.sample_sets):
        save_arrays(folder / _SAMPLE.format(number), arrays)


def _read_set(function: Function, folder: Path, number: int) -> AccuracySample:
    inputs, expected = (
        load_reference(folder / f"{side}-{number}") for side in (_INPUTS, _EXPECTED)
    )
    return AccuracySample(
        {name: np.array(inputs[name]) for name in function.graph.inputs},
        {name: np.array(value) for name, value in expected.items()},
    )


def _answer(question: Question) -> Mapping[str, Any]:
    """Run the model, in the child."""
    folder = Path(question["folder"])
    function = replace(
        load_function(Path(question["simplified"]), question["function"]),
        sample_sets=tuple(
            load_arrays(folder / _SAMPLE.format(number))
            for number in range(question["sample_sets"])
        ),
        settings=load_arrays(folder / _SETTINGS),
    )
    try:
        sets = input_sets(function, question["seed"])
        save_reference(reference_values(function, sets[0]), folder)
        for number, inputs in enumerate(sets):
            _save_set(question, function, inputs, number)
        if question["generates_golden"]:
            without_samples = replace(function, sample_sets=())
            inputs = random_inputs(without_samples, question["seed"])
            _save_set(question, without_samples, inputs, len(sets))
    except ModelError as error:
        raise ModelError(f"{question['path']}: {error}") from error
    return {}


def _save_set(
    question: Question, function: Function, inputs: Mapping[str, np.ndarray], number: int
) -> None:
    """Write a set of inputs with the original model's outputs."""
    folder = Path(question["folder"])
    save_reference(inputs, folder / f"{_INPUTS}-{number}")
    expected = _original_outputs(question, function, inputs)
    save_reference(expected, folder / f"{_EXPECTED}-{number}")


def _original_outputs(
    question: Question, function: Function, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original file once and return its outputs by name."""
    names = list(function.graph.outputs)
    with run_explained(function):
        original = Original(question["path"], frozenset(question["float_types"]))
        return dict(zip(names, original.run(names, inputs), strict=True))


if __name__ == "__main__":
    answer_limited(_answer)

"""Trials: sets of inputs with the original's outputs, on which plans in reduced precision are judged.

One set of inputs says little about rounding, so a plan that computes in less than float32 is tried on the
gate's inputs and on `MORE_SEEDS` further ones. The sets lie in a folder; the contenders, each in a process
of its own, read them: the original answers once for all, each plan compares itself with that
and tells its errors. The compiler's process runs nothing.

    outputs.json      names of the outputs in the function's order, and which are probabilities
    inputs-K.npz      the inputs in the function's order
    expected-K.npz    the original's outputs in the function's order
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage.runtime.arrays import load_arrays
from collage.runtime.precision import output_error

if TYPE_CHECKING:
    from collage.frontend.model import Function

MORE_SEEDS = 10

Errors = Mapping[str, float]
"""Largest error of every output, by name, over all trials; +inf where it cannot be compared."""

RunOn = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Run on inputs and return the outputs, both in the function's order."""


def write_trials(
    function: "Function", sets: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> None:
    """Write the sets of inputs; `answer_trials` adds what the original makes of them."""
    from collage.frontend.region import probability_outputs

    folder.mkdir(parents=True)
    certain = probability_outputs(function)
    facts = {"names": list(function.graph.outputs), "probabilities": sorted(certain)}
    (folder / "outputs.json").write_text(json.dumps(facts))
    for number, inputs in enumerate(sets):
        np.savez(folder / f"inputs-{number}.npz", *(inputs[n] for n in function.graph.inputs))


def answer_trials(folder: Path, run: RunOn) -> int:
    """Write the original's outputs for every set of inputs; return how many there are."""
    count = 0
    while (file := folder / f"inputs-{count}.npz").is_file():
        np.savez(folder / f"expected-{count}.npz", *run(_arrays(file)))
        count += 1
    return count


def check_trials(folder: Path, run: RunOn) -> dict[str, float]:
    """Return the largest error of every output over all trials."""
    facts = json.loads((folder / "outputs.json").read_text())
    largest = dict.fromkeys(facts["names"], 0.0)
    number = 0
    while (file := folder / f"expected-{number}.npz").is_file():
        found = run(_arrays(folder / f"inputs-{number}.npz"))
        for name, reference, actual in zip(facts["names"], _arrays(file), found, strict=True):
            certain = name in facts["probabilities"]
            error = output_error(reference, actual, probability=certain)
            largest[name] = max(largest[name], error)
        number += 1
    if not number:
        raise FileNotFoundError(f"there are no answered trials in {folder}")
    return largest


def beyond(errors: Errors, tolerance: float) -> str:
    """Say which outputs are beyond the tolerance, "" when none is."""
    return ", ".join(
        f"{name}: " + ("other integers, NaN or shape" if math.isinf(error) else f"error {error:.3g}")
        + f", tolerance {tolerance:g}"
        for name, error in errors.items() if error > tolerance
    )  # fmt: skip


def _arrays(file: Path) -> list[np.ndarray]:
    stored = load_arrays(file)
    return [np.asarray(stored[f"arr_{n}"], order="C") for n in range(len(stored))]

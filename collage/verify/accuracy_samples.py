"""Accuracy samples: sets of inputs with the original's outputs, to judge plans in reduced precision.

One set of inputs says little about rounding errors, so a plan in less than float32 runs on the gate's inputs
and on `MORE_SEEDS` further sets. The sets are files of one folder, read by the processes of the benchmark
targets: the original writes the expected outputs once, each plan compares its own outputs with these and
returns the errors. The process of the compiler runs nothing.

    outputs.json      names of the outputs in the function's order, and of those with probabilities
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
"""Largest error of every output, by name, over all samples; +inf where it cannot be compared."""

RunOn = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""Run on inputs and return the outputs, both in the function's order."""


def write_samples(
    function: "Function", sets: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> None:
    """Write the sets of inputs; `write_expected` adds the original's outputs."""
    from collage.frontend.region import probability_outputs

    folder.mkdir(parents=True)
    certain = probability_outputs(function)
    facts = {"names": list(function.graph.outputs), "probabilities": sorted(certain)}
    (folder / "outputs.json").write_text(json.dumps(facts))
    for number, inputs in enumerate(sets):
        np.savez(folder / f"inputs-{number}.npz", *(inputs[n] for n in function.graph.inputs))


def write_expected(folder: Path, run: RunOn) -> int:
    """Write the original's outputs for every set of inputs; return the number of sets."""
    count = 0
    while (file := folder / f"inputs-{count}.npz").is_file():
        np.savez(folder / f"expected-{count}.npz", *run(_arrays(file)))
        count += 1
    return count


def largest_errors(folder: Path, run: RunOn) -> dict[str, float]:
    """Return the largest error of every output over all samples."""
    facts = json.loads((folder / "outputs.json").read_text())
    largest = dict.fromkeys(facts["names"], 0.0)
    number = 0
    while (file := folder / f"expected-{number}.npz").is_file():
        outputs = run(_arrays(folder / f"inputs-{number}.npz"))
        for name, reference, actual in zip(facts["names"], _arrays(file), outputs, strict=True):
            certain = name in facts["probabilities"]
            error = output_error(reference, actual, probability=certain)
            largest[name] = max(largest[name], error)
        number += 1
    if not number:
        raise FileNotFoundError(f"there are no samples with expected outputs in {folder}")
    return largest


def beyond(errors: Errors, tolerance: float) -> str:
    """Return the outputs beyond the tolerance in words, "" where none is."""
    return ", ".join(
        f"{name}: " + ("other integers, NaN or shape" if math.isinf(error) else f"error {error:.3g}")
        + f", tolerance {tolerance:g}"
        for name, error in errors.items() if error > tolerance
    )  # fmt: skip


def _arrays(file: Path) -> list[np.ndarray]:
    stored = load_arrays(file)
    return [np.asarray(stored[f"arr_{n}"], order="C") for n in range(len(stored))]

"""Accuracy samples: further sets of inputs with the original's outputs, to judge plans.

One set of inputs says little about rounding errors, so a plan in less than float32 runs on the gate's inputs
and on `MORE_SEEDS` further sets. A user's further sample sets judge every plan. The sets are files of one
folder, read by the processes of the benchmark targets: the original writes the expected outputs once, each
plan compares its own outputs with these and returns the errors, or the difference in words. The process of
the compiler runs nothing.

    outputs.json      names of the outputs in the function's order, of those with probabilities and of a
                      softmax, and whether the model is quantised
    inputs-K.npz      the inputs in the function's order
    expected-K.npz    the original's outputs in the function's order
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage.graph.quantisation import is_quantised
from collage.runtime.arrays import load_arrays
from collage.runtime.precision import output_error
from collage.verify.numerics import compare_outputs

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
    from collage.frontend.region import function_outputs_of, probability_outputs

    folder.mkdir(parents=True)
    facts = {
        "names": list(function.graph.outputs),
        "probabilities": sorted(probability_outputs(function)),
        "softmax": sorted(function_outputs_of(function, frozenset({"Softmax"}))),
        "quantised": is_quantised(function.graph),
        "drawn": sorted(function.drawn_outputs),
    }
    (folder / "outputs.json").write_text(json.dumps(facts))
    for number, inputs in enumerate(sets):
        np.savez(folder / f"inputs-{number}.npz", *(inputs[n] for n in function.graph.inputs))


def write_outputs(
    function: "Function", outputs: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> None:
    """Write the original's outputs of every set, where these are at hand."""
    for number, expected in enumerate(outputs):
        np.savez(folder / f"expected-{number}.npz", *(expected[n] for n in function.graph.outputs))


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


def differences(folder: Path, run: RunOn) -> str:
    """Return the difference from the original's outputs in words, "" where all samples agree."""
    facts = json.loads((folder / "outputs.json").read_text())
    names, number, reasons = facts["names"], 0, []
    while (file := folder / f"expected-{number}.npz").is_file():
        outputs = run(_arrays(folder / f"inputs-{number}.npz"))
        checks = compare_outputs(
            dict(zip(names, _arrays(file), strict=True)),
            dict(zip(names, outputs, strict=True)),
            frozenset(facts["softmax"]),
            quantised=facts["quantised"],
        )
        number += 1
        reasons += [
            f"sample set {number + 1}, {check.name}: {check.reason}"
            for check in checks
            if not check.passed and check.name not in facts["drawn"]
        ]
    if not number:
        raise FileNotFoundError(f"there are no samples with expected outputs in {folder}")
    return ", ".join(reasons)


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

"""Answers of the original frameworks, compared with the reference.

The reference is ONNX Runtime without the optimisations that rewrite operators. A framework that computes
other numbers from the original file neither counts as a baseline nor ships. Two kinds of models have more
than one right answer:

* quantised models. Every rounding to 8 bits may fall to either side, and later layers amplify the step: a
  trained audio model has 0.41 without ONNX Runtime's optimisations and 0.45 with all of them. So a framework
  may be as far from the reference as ONNX Runtime with all optimisations is, and the decision names this
  distance: no bundle for such a model ships without it;
* models that draw random numbers. Two runs of ONNX Runtime differ, and no numbers are compared.

Where a plan of regions has the reference's numbers, the model draws none. Then a framework whose answers
change from call to call keeps state between calls (`frontend.batch_statistics`), and does not count. Nor does
one whose answers are equal where those of the original vary: it computes Dropout in training mode as a copy.

The inputs are those of the gate, and the user's further samples.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from collage.errors import MeasureError
from collage.runtime.precision import output_error
from collage.verify.accuracy_checker import AccuracyChecker

OWN = "onnxruntime"
"""Baseline that is the reference's library with all optimisations."""
COMPARED = frozenset({OWN, "openvino"})
"""Baselines in float32 on the processor, whose numbers are compared."""

Answers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class FrameworkAnswers:
    """Result of the comparison.

    Attributes:
        exempt: reasons of frameworks with wrong numbers, by name.
        note: ONNX Runtime's two different answers, and the exempt frameworks, in words; "" without any.
    """

    exempt: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class _Distance:
    """Distance of a framework's answers from the reference.

    Attributes:
        wrong: outputs beyond the tolerance, by name, with the difference in words.
        noticeable: the same beyond the tolerance of floats, for a quantised model too.
        errors: largest error of every output as a share of its scale, over all sets of inputs.
    """

    wrong: Mapping[str, str]
    noticeable: Mapping[str, str]
    errors: Mapping[str, float]


_NONE = _Distance({}, {}, {})


def compare_answers(
    checker: AccuracyChecker, names: Set[str], *, is_reproducible: bool
) -> FrameworkAnswers:
    """Compare the answers of running frameworks with the reference.

    Args:
        checker: checker with the reference's outputs.
        names: names of the running frameworks.
        is_reproducible: whether all numbers are the same in every run, as those of a plan were.
    """
    distances: dict[str, _Distance] = {}
    exempt: dict[str, str] = {}
    for name in sorted(names & COMPARED):
        try:
            first, second = checker.answers(name), checker.answers(name)
            if checker.draws_nothing(first, second):
                exempt[name] = "it draws no random numbers, as the model does"
            elif checker.agree(first, second):
                distances[name] = _distance(checker, name, first)
            elif is_reproducible:
                exempt[name] = "its numbers change from call to call"
            elif name == OWN:
                return FrameworkAnswers()
        except MeasureError:
            continue  # its process has ended, which the comparison of latencies reports
    own = distances.pop(OWN, _NONE)
    for name, distance in distances.items():
        wrong = {
            output: reason
            for output, reason in distance.wrong.items()
            if distance.errors[output] > own.errors.get(output, 0.0)
        }
        if wrong:
            reasons = ", ".join(f"{output}: {reason}" for output, reason in wrong.items())
            exempt[name] = f"its numbers are not those of the original model ({reasons})"
    excluded = [f"{name} does not count: {reason}" for name, reason in exempt.items()]
    return FrameworkAnswers(exempt, "; ".join(filter(None, (_note(own), *excluded))))


def _distance(checker: AccuracyChecker, name: str, answers: Answers) -> _Distance:
    """Compare one framework on the gate's inputs and on the user's samples."""
    errors = {
        output: output_error(expected, answers[output])
        for output, expected in checker.expected.items()
    }
    wrong = checker.differences(answers)
    noticeable = checker.differences(answers, in_steps=False)
    if checker.samples is not None and (words := checker.wrong_on_samples(name)):
        on_samples = checker.benchmark.check(name, checker.samples)
        errors = {output: max(error, on_samples[output]) for output, error in errors.items()}
        worst = max(on_samples, key=lambda output: on_samples[output])
        wrong, noticeable = {worst: words} | wrong, {worst: words} | noticeable
    return _Distance(wrong, noticeable, errors)


def _note(own: _Distance) -> str:
    """Say how far apart ONNX Runtime's two answers are, "" where they are equal but for float rounding.

    A quantised model is held to the tolerance of floats here: a step that fell to the other side on these
    inputs may be amplified on others.
    """
    if not own.noticeable:
        return ""
    distances = ", ".join(
        f"{name} by {own.errors[name]:.2g} of its scale"
        if math.isfinite(own.errors[name])
        else f"{name}: {reason}"
        for name, reason in own.noticeable.items()
    )
    return (
        "ONNX Runtime's own answers with all and without optimisations differ: "
        f"{distances}; other inputs may differ more"
    )

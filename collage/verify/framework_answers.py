"""Answers of the original frameworks, compared with the reference.

The reference is ONNX Runtime without the optimisations that rewrite operators. A framework that computes
other numbers from the original file neither counts as a baseline nor ships. Two kinds of models have more
than one right answer:

* quantised models. Every rounding to 8 bits may fall to either side, and later layers amplify the step: a
  trained audio model has 0.41 without ONNX Runtime's optimisations and 0.45 with all of them. So a framework
  may be as far from the reference as ONNX Runtime with all optimisations is, and the decision names this
  distance: no bundle for such a model ships without it;
* models that draw random numbers. Two runs of ONNX Runtime differ, and no numbers are compared.
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
        note: sentence about ONNX Runtime's two different answers; "" where they agree.
    """

    exempt: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def compare_answers(checker: AccuracyChecker, names: Set[str]) -> FrameworkAnswers:
    """Compare the answers of running frameworks with the reference.

    Args:
        checker: checker with the reference's outputs.
        names: names of the running frameworks.
    """
    answers: dict[str, Answers] = {}
    for name in sorted(names & COMPARED):
        try:
            first, second = checker.answers(name), checker.answers(name)
        except MeasureError:
            continue  # its process has ended, which the comparison of latencies reports
        if checker.agree(first, second):
            answers[name] = first
        elif name == OWN:
            return FrameworkAnswers()
    own_errors = _errors(checker.expected, answers.get(OWN, {}))
    exempt = {}
    for name in sorted(answers.keys() - {OWN}):
        wrong = {
            output: reason
            for output, reason in checker.differences(answers[name]).items()
            if output_error(checker.expected[output], answers[name][output])
            > own_errors.get(output, 0.0)
        }
        if wrong:
            reasons = ", ".join(f"{output}: {reason}" for output, reason in wrong.items())
            exempt[name] = f"its numbers are not those of the original model ({reasons})"
    return FrameworkAnswers(exempt, _note(checker, answers.get(OWN), own_errors))


def _errors(expected: Answers, actual: Answers) -> dict[str, float]:
    return {name: output_error(expected[name], actual[name]) for name in actual}


def _note(checker: AccuracyChecker, own: Answers | None, errors: Mapping[str, float]) -> str:
    """Say how far apart ONNX Runtime's two answers are, "" where they are equal but for float rounding.

    A quantised model is held to the tolerance of floats here: a step that fell to the other side on these
    inputs may be amplified on others.
    """
    if own is None or not (differing := checker.differences(own, in_steps=False)):
        return ""
    distances = ", ".join(
        f"{name} by {errors[name]:.2g} of its scale"
        if math.isfinite(errors[name])
        else f"{name}: {reason}"
        for name, reason in differing.items()
    )
    return (
        "ONNX Runtime's own answers with all and without optimisations differ: "
        f"{distances}; other inputs may differ more"
    )

"""One node test of `onnx.backend.test`: import, kernels of every backend, an executable, comparison.

A kernel is judged as in a compile: on generated inputs, and on edge inputs. One that is refused there never
ships, so it is a skip with its reason. A kernel that passes must give the test's numbers, or those of
unoptimised ONNX Runtime where that itself gives others.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Backend, BuildContext
from collage.backends.registry import available_backends
from collage.errors import BackendError, CollageError
from collage.frontend import Function, import_model
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.region import region_values
from collage.frontend.region_reference import RegionReference
from collage.graph.quantisation import is_quantised
from collage.measure.callable_kernel import as_tensors, callable_kernel, poisoned_like
from collage.measure.edge_judgement import EdgeCases, EdgeRules, judge_edges
from collage.measure.kernel_builder import Prepared, run_on
from collage.measure.numerics import difference
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin
from collage.runtime.session import ExecutableSession
from collage.verify.plan_executable import function_signature

SEED = 5
EXECUTABLE = "executable"
"""Name of the results inside an executable."""


class Outcome(StrEnum):
    """What a backend makes of a test."""

    PASSED = "passed"
    SKIPPED = "skipped"
    WRONG = "wrong"


@dataclass(frozen=True)
class Result:
    """The result of one test on one backend; `reason` is "" where it passed."""

    test: str
    backend: str
    outcome: Outcome
    reason: str = ""


@cache
def node_tests() -> Mapping[str, object]:
    """Return the tests by name, in the order of the generator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


@cache
def backends() -> tuple[Backend, ...]:
    load_plugin()
    return tuple(available_backends(None))


def run_test(name: str, folder: Path) -> Iterator[Result]:
    """Yield the result of each backend.

    Args:
        folder: empty folder for the model's files.
    """
    case = node_tests()[name]
    try:
        onnx.save(case.model, folder / "model.onnx")
        function = import_model(folder / "model.onnx", work_dir=folder).functions[0]
        feeds = [_feeds(function, inputs) for inputs, _ in case.data_sets]
        ordinary = reference_values(function, random_inputs(function, SEED))
    except (CollageError, TypeError, ValueError) as error:
        yield Result(name, "import", Outcome.SKIPPED, _reason(error))
        return
    if not function.graph.nodes:
        yield Result(name, "import", Outcome.SKIPPED, "nothing is left to compute after folding")
        return
    passed = None
    for backend in backends():
        result = _on_backend(name, backend, function, feeds=feeds, ordinary=ordinary)
        yield result
        if passed is None and result.outcome is Outcome.PASSED:
            passed = backend
    if passed is not None:
        yield _in_executable(name, passed, function, feeds=feeds, folder=folder)


def _feeds(function: Function, inputs: list[object]) -> list[np.ndarray]:
    names = region_values(function, function.graph.everything)[0]
    if any(not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" for value in inputs):
        raise ValueError("inputs that are no tensors of numbers")
    by_name = dict(zip(function.graph.inputs, inputs, strict=True))
    return [by_name[name] for name in names]


def _on_backend(
    name: str,
    backend: Backend,
    function: Function,
    *,
    feeds: list[list[np.ndarray]],
    ordinary: Mapping[str, np.ndarray],
) -> Result:
    def result(outcome: Outcome, reason: str = "") -> Result:
        return Result(name, backend.name, outcome, reason)

    nodes = function.graph.everything
    for index in range(len(function.graph)):
        if reason := backend.unsupported(function, index):
            return result(Outcome.SKIPPED, reason)
    variant = backend.variants[0]
    try:
        kernel = backend.compile(function, nodes, BuildContext(1), variant)
    except BackendError as error:
        return result(Outcome.SKIPPED, _reason(error))
    inputs = [ordinary[value] for value in region_values(function, nodes)[0]]
    reference = RegionReference(function, nodes)
    prepared = _prepared(function, kernel, inputs, reference.run(inputs) or ())
    if refusal := _judged(function, backend, prepared, inputs):
        return result(Outcome.SKIPPED, f"refused: {refusal}")
    for values in feeds:
        expected = reference.run(values)
        if expected is None:
            return result(Outcome.SKIPPED, "ONNX Runtime does not run it")
        check = Prepared(
            prepared.call, prepared.arguments, prepared.inputs, prepared.outputs, expected=expected,
            quantised=prepared.quantised, allocates=prepared.allocates,
        )  # fmt: skip
        defect, _ = check.judge(run_on(check, values))
        if defect:
            return result(Outcome.WRONG, defect)
    return result(Outcome.PASSED)


def _in_executable(
    name: str, backend: Backend, function: Function, *, feeds: list[list[np.ndarray]], folder: Path
) -> Result:
    """Run the backend's kernel inside an executable, as a bundle does."""
    nodes, file = function.graph.everything, folder / "model.so"
    values = region_values(function, nodes)
    kernel = backend.compile(function, nodes, BuildContext(1), backend.variants[0])
    planned = PlannedKernel(nodes, backend.name, kernel, *values)
    assemble([FunctionPlan(function, (planned,))], 1, file)
    session = ExecutableSession(file, (function_signature(function),), 1)
    reference = RegionReference(function, nodes)
    for inputs in feeds:
        actual = session.run(dict(zip(values[0], inputs, strict=True)))
        expected = reference.run(inputs) or ()
        outputs = [actual[value] for value in values[1]]
        if defect := difference(expected, outputs, quantised=is_quantised(function.graph)):
            return Result(name, EXECUTABLE, Outcome.WRONG, defect)
    return Result(name, EXECUTABLE, Outcome.PASSED)


def _prepared(function, kernel, inputs, expected) -> Prepared:
    allocates = getattr(kernel, "allocates", False)
    outputs = () if allocates else tuple(poisoned_like(value) for value in expected)
    buffers = tuple(aligned_copy(value) for value in inputs)
    call, constants = callable_kernel(kernel, 1)
    return Prepared(
        call, as_tensors([*buffers, *constants, *outputs]), buffers, outputs, expected=tuple(expected),
        quantised=is_quantised(function.graph), allocates=allocates,
    )  # fmt: skip


def _judged(function: Function, backend: Backend, prepared: Prepared, inputs) -> str:
    defect, _ = prepared.judge(run_on(prepared, inputs))
    if defect:
        return defect
    rules = EdgeRules(quantised=prepared.quantised, spreads_nan=backend.spreads_nan)
    cases = EdgeCases(function, function.graph.everything, inputs)
    judgement = judge_edges(cases, lambda values: run_on(prepared, values), rules)
    return judgement.defect


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]

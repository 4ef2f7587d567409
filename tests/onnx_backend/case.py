"""One node test of `onnx.backend.test`: import, kernels of every backend, an executable, comparison.

The imported function must give the numbers of the original file in ONNX Runtime, or those that the test
states. A kernel is judged as in a compile: on generated inputs, and on edge inputs. One that is refused
there never ships, so it is a skip with its reason. A kernel that passes must give the function's numbers on
the test's inputs too. The first backend that passes also computes the function inside an executable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from collage.assemble import FunctionPlan, PlannedKernel, assemble
from collage.backends.base import Backend, BuildContext
from collage.backends.registry import available_backends
from collage.errors import BackendError, CollageError, ModelError
from collage.frontend import Function, Model, import_model
from collage.frontend.edge_inputs import EdgeInputs, EdgeKind
from collage.frontend.inputs import random_inputs, reference_values
from collage.frontend.original_interface import read_interface
from collage.frontend.region import region_values
from collage.graph.quantisation import is_quantised
from collage.measure.callable_kernel import as_tensors, callable_kernel, poisoned_like
from collage.measure.edge_judgement import (
    EdgeCase,
    EdgeCases,
    EdgeJudgement,
    EdgeRules,
    judge_edges,
)
from collage.measure.kernel_builder import Prepared, run_on
from collage.measure.numerics import difference
from collage.measure.random_outputs import random_difference
from collage.pipeline.original_bundle import unlike_executable
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin
from collage.runtime.session import ExecutableSession
from collage.verify.original_model import Original
from collage.verify.plan_executable import function_signature
from tests.onnx_backend.node_tests import NodeTest, values_differ, write_test
from tests.onnx_backend.original_file import (
    judge_original_file,
    onnxruntime_answer,
    refusal_reason,
)
from tests.onnx_backend.results import EXECUTABLE, IMPORT, Outcome, Result

SEED = 5
HIDES_NAN = (
    "gives numbers where the original gives NaN: the manifest says so, and --keep-nan refuses it"
)
Values = Mapping[str, np.ndarray]
"""Values of a function by name, its inputs and outputs included."""


@cache
def backends() -> tuple[Backend, ...]:
    load_plugin()
    return tuple(available_backends(None))


def run_test(name: str, folder: Path) -> Iterator[Result]:
    """Yield the result of the import, of each backend, and of the executable.

    Args:
        folder: empty folder for the model's files.
    """
    test = write_test(name, folder)
    try:
        interface = read_interface(test.file)
        if unlike_executable(interface):
            yield judge_original_file(test, interface, folder / "original")
            return
        model = import_model(test.file, work_dir=folder)
        imported = ImportedTest.of(test, model.functions[0])
    except CollageError as error:
        yield Result(name, IMPORT, Outcome.SKIPPED, _refusal(test, error))
        return
    yield _judge_import(test, model, imported)
    kernel = None
    if imported.function.graph.nodes:
        for backend in backends():
            result, passed = _judge_kernel(name, backend, imported)
            yield result
            kernel = kernel or passed
    if kernel or not imported.function.graph.nodes:
        yield _judge_executable(name, kernel, imported, folder / "model.so")


@dataclass(frozen=True)
class ImportedTest:
    """A test as a function.

    Attributes:
        function: the function.
        answers: its values on the inputs of each data set.
        ordinary: its values on generated inputs; on the test's, where an input is a setting.
    """

    function: Function
    answers: tuple[Values, ...]
    ordinary: Values

    @classmethod
    def of(cls, test: NodeTest, function: Function) -> "ImportedTest":
        """Compute the values. Raises ModelError where ONNX Runtime does not."""
        feeds = [{name: feed[name] for name in function.graph.inputs} for feed in test.feeds]
        user = replace(function, sample_sets=feeds)
        answers = tuple(reference_values(user, feed) for feed in feeds)
        try:
            ordinary = reference_values(function, random_inputs(function, SEED))
        except ModelError:
            ordinary = answers[0]
        return cls(function, answers, ordinary)

    def difference(self, expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> str:
        """Return the difference of two lists of outputs in words, or ""; draws differ in numbers."""
        if self.function.drawing:
            return random_difference(expected, actual, is_one_draw=False)
        return difference(expected, actual, quantised=is_quantised(self.function.graph))


def _refusal(test: NodeTest, error: CollageError) -> str:
    runs = onnxruntime_answer(test, test.feeds[0]) is not None
    reason = _reason(error).replace(f"{test.file}: ", "")
    return refusal_reason(reason, runs=runs)


def _judge_import(test: NodeTest, model: Model, imported: ImportedTest) -> Result:
    outputs = imported.function.graph.outputs
    original = Original(test.file, model.float_types)
    for answer, feed, stated in zip(imported.answers, test.feeds, test.stated, strict=True):
        actual = [answer[name] for name in outputs]
        defect = imported.difference(original.run(outputs, feed), actual)
        if defect and values_differ(stated, actual):
            return Result(test.name, IMPORT, Outcome.WRONG, defect)
    return Result(test.name, IMPORT, Outcome.PASSED)


def _judge_kernel(
    name: str, backend: Backend, imported: ImportedTest
) -> tuple[Result, PlannedKernel | None]:
    """Return the result, and the kernel where it passes."""
    function, nodes = imported.function, imported.function.graph.everything
    for index in range(len(function.graph)):
        if reason := backend.unsupported(function, index):
            return Result(name, backend.name, Outcome.SKIPPED, reason), None
    try:
        kernel = backend.compile(function, nodes, BuildContext(1), backend.variants[0])
    except BackendError as error:
        return Result(name, backend.name, Outcome.SKIPPED, _reason(error)), None
    try:
        prepared = _prepared(imported, kernel)
        refusal = _ordinary_defect(imported, backend, prepared)
    except Exception as error:
        refusal = f"it fails: {str(error).strip().splitlines()[0]}"
    if refusal:
        return Result(name, backend.name, Outcome.SKIPPED, f"refused: {refusal}"), None
    for answer in imported.answers:
        judgement = _judge_answer(imported, backend, prepared, answer)
        if judgement.defect:
            return Result(name, backend.name, Outcome.WRONG, judgement.defect), None
        if judgement.hides_nan:
            return Result(name, backend.name, Outcome.SKIPPED, HIDES_NAN), None
    planned = PlannedKernel(nodes, backend.name, kernel, *region_values(function, nodes))
    return Result(name, backend.name, Outcome.PASSED), planned


def _judge_answer(
    imported: ImportedTest, backend: Backend, prepared: Prepared, answer: Values
) -> EdgeJudgement:
    """Judge the kernel on the test's inputs; on those with NaN or infinities by the rules of edge inputs."""
    function, nodes = imported.function, imported.function.graph.everything
    inputs, expected = (
        tuple(answer[name] for name in names) for names in region_values(function, nodes)
    )
    special = tuple(_special_elements(value) for value in inputs)
    if all(mask is None for mask in special):
        check = replace(prepared, expected=expected)
        return EdgeJudgement(check.judge(run_on(check, inputs))[0])
    kind = EdgeKind.NAN if any(map(_has_nan, inputs)) else EdgeKind.INFINITE
    cases = _edge_cases(imported)
    cases.cases = [EdgeCase(EdgeInputs(kind, inputs, special), expected)]
    rules = EdgeRules(quantised=prepared.quantised, spreads_nan=backend.spreads_nan)
    return judge_edges(cases, lambda values: run_on(prepared, values), rules)


def _special_elements(value: np.ndarray) -> np.ndarray | None:
    mask = ~np.isfinite(value)
    return mask if mask.any() else None


def _has_nan(value: np.ndarray) -> bool:
    return bool(np.isnan(value).any())


def _edge_cases(imported: ImportedTest) -> EdgeCases:
    function, nodes = imported.function, imported.function.graph.everything
    inputs, _ = region_values(function, nodes)
    return EdgeCases(function, nodes, [imported.ordinary[name] for name in inputs])


def _prepared(imported: ImportedTest, kernel: object) -> Prepared:
    """Return the kernel with buffers, as `FunctionKernelBuilder.with_buffers`."""
    function, nodes = imported.function, imported.function.graph.everything
    inputs, outputs = (
        tuple(imported.ordinary[name] for name in names) for names in region_values(function, nodes)
    )
    allocates = getattr(kernel, "allocates", False)
    buffers = tuple(aligned_copy(value) for value in inputs)
    results = () if allocates else tuple(poisoned_like(value) for value in outputs)
    call, constants = callable_kernel(kernel, 1)
    return Prepared(
        call,
        as_tensors([*buffers, *constants, *results]),
        buffers,
        results,
        expected=outputs,
        quantised=is_quantised(function.graph),
        allocates=allocates,
        draws=bool(function.drawing),
        is_one_draw=len(function.graph) == 1,
    )


def _ordinary_defect(imported: ImportedTest, backend: Backend, prepared: Prepared) -> str:
    """Return the defect on generated inputs and on edge inputs, for which a compile refuses the kernel."""
    inputs = [value.copy() for value in prepared.inputs]
    defect, _ = prepared.judge(run_on(prepared, inputs))
    if defect:
        return defect
    rules = EdgeRules(quantised=prepared.quantised, spreads_nan=backend.spreads_nan)
    return judge_edges(_edge_cases(imported), lambda values: run_on(prepared, values), rules).defect


def _judge_executable(
    name: str, kernel: PlannedKernel | None, imported: ImportedTest, file: Path
) -> Result:
    """Run the kernel inside an executable, as a bundle does."""
    function = imported.function
    assemble([FunctionPlan(function, (kernel,) if kernel else ())], 1, file)
    session = ExecutableSession(file, (function_signature(function),), 1)
    for answer in imported.answers:
        actual = session.run({value: answer[value] for value in function.graph.inputs})
        pairs = [(answer[value], actual[value]) for value in function.graph.outputs]
        expected, outputs = zip(*pairs, strict=True)
        if defect := imported.difference(expected, outputs):
            return Result(name, EXECUTABLE, Outcome.WRONG, defect)
    return Result(name, EXECUTABLE, Outcome.PASSED)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]

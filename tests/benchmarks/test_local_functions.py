"""Searches of repeated calls: what lies within one call is measured once, however many calls there are."""

import onnx
import pytest

from benchmarks.local_functions import CASES, COLUMNS, rows, search
from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend
from collage.backends.cpu.tvm import TvmBackend
from collage.frontend import import_model
from collage.options import Options
from collage.search.enumeration import enumerate_function

ELEMENTWISE = CASES[1]
BACKENDS = (TvmBackend(), OnnxRuntimeBackend())


def enumerated(case, calls, folder, backends=BACKENDS):
    onnx.save(case.model(calls), folder / f"{calls}.onnx")
    (function,) = import_model(folder / f"{calls}.onnx", work_dir=folder / str(calls)).functions
    return enumerate_function(function, backends)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_valid_model(case):
    onnx.checker.check_model(case.model(2), full_check=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_further_call_adds_the_same_few_candidates(case, tmp_path):
    unique = {calls: len(enumerated(case, calls, tmp_path).work) for calls in (1, 4, 5, 6)}
    added = unique[6] - unique[5]
    assert added == unique[5] - unique[4]
    assert added <= unique[1] / 2


@pytest.mark.full
def test_a_search_of_more_calls_measures_nothing_again(tmp_path):
    options = Options(
        backends=("onnxruntime",),
        threads=1,
        cache_dir=tmp_path / "store",
        measure_budget_s=60,  # far more than the few candidates take
        tune_s=0,
    )
    fewer, more = (
        enumerated(ELEMENTWISE, calls, tmp_path, [OnnxRuntimeBackend()]).work.keys()
        for calls in (3, 6)
    )
    first = search(tmp_path / "3.onnx", 3, options)
    second = search(tmp_path / "6.onnx", 6, options)
    assert (first.unique, second.unique) == (len(fewer), len(more))
    assert first.in_call == second.in_call
    reused = first.measured - len(fewer - more)
    assert reused > 0
    assert second.measured <= len(more) - reused


@pytest.mark.full
def test_a_row_has_a_number_for_each_column(tmp_path):
    options = Options(
        backends=("onnxruntime",), threads=1, cache_dir=tmp_path, measure_budget_s=1, tune_s=0
    )
    lines = rows(ELEMENTWISE, [1, 2], options, tmp_path)
    for line, calls in zip(lines, (1, 2), strict=True):
        cells = dict(zip(COLUMNS, line.split(), strict=True))
        assert cells["function"] == "elementwise"
        assert int(cells["nodes"]) == 4 * calls
        assert max(int(cells["added"]), int(cells["measured"])) <= int(cells["unique"])
        assert int(cells["in a call"]) <= int(cells["unique"]) <= int(cells["candidates"])

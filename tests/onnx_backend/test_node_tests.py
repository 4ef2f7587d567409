"""The node tests of `onnx.backend.test`: no backend gives a wrong number; `make onnx-tests` runs all."""

import numpy as np
import pytest

from tests.onnx_backend import workers
from tests.onnx_backend.node_tests import values_differ
from tests.onnx_backend.results import EXECUTABLE, IMPORT, ORIGINAL_FILE, Outcome, Result, tables
from tests.onnx_backend.run import chosen_tests
from tests.onnx_backend.workers import run_tests

FEW = ["test_gather_0", "test_relu"]
SETTING_AND_TEXT = ["test_expand_dim_changed", "test_sequence_insert_at_back", "test_string_concat"]
WINDOW, RANGE = "test_blackmanwindow", "test_range_bfloat16_type_positive_delta_expanded"
MASKED = "test_attention_4d_causal_nonpad_negative_offset_structural_empty_expanded"
TIES, DROPPED = "test_quantizelinear_uint16", "test_dropout_default_ratio"
SEED = 1


def wrong(results):
    return [result for result in results if result.outcome is Outcome.WRONG]


def passed(results):
    return {(r.test, r.backend) for r in results if r.outcome is Outcome.PASSED}


def test_a_few_node_tests_pass_on_kernels_and_in_an_executable():
    results = list(run_tests(FEW, jobs=2))
    assert not wrong(results)
    assert list(dict.fromkeys(result.test for result in results)) == FEW
    places = (IMPORT, "onnxruntime", "tvm", EXECUTABLE)
    assert {(name, place) for name in FEW for place in places} <= passed(results)


def test_settings_are_given_and_texts_run_in_the_original_file():
    setting, sequence, text = SETTING_AND_TEXT
    places = {(setting, EXECUTABLE), (sequence, ORIGINAL_FILE), (text, ORIGINAL_FILE)}
    results = list(run_tests(SETTING_AND_TEXT))
    assert not wrong(results)
    assert places <= passed(results)


def test_shapes_by_value_and_kernels_for_some_values_only():
    """A window's size is a value; OpenVINO hides masks of whole rows, moves ties, and drops operands."""
    results = list(run_tests([WINDOW, RANGE, MASKED, TIES, DROPPED]))
    assert not wrong(results)
    assert {(name, EXECUTABLE) for name in (WINDOW, RANGE, MASKED, TIES, DROPPED)} <= passed(
        results
    )
    reasons = {result.test: result.reason for result in results if result.backend == "openvino"}
    assert reasons[WINDOW] == "the function returns a tensor whose shape depends on data"
    assert "NaN or infinity where the reference has none, on finite edge values" in reasons[MASKED]
    assert "elements differ, on finite edge values" in reasons[TIES]
    assert reasons[DROPPED] == "OpenVINO drops 1 of its inputs"


def test_an_unknown_test_is_wrong_not_lost():
    (result,) = run_tests(["test_of_nothing"])
    assert (result.backend, result.outcome) == ("program", Outcome.WRONG)


def test_a_test_without_end_is_wrong(monkeypatch):
    monkeypatch.setattr(workers, "MAX_TEST_S", 0.01)
    (result,) = run_tests(["test_relu"])
    assert (result.outcome, result.reason) == (Outcome.WRONG, "the process: more than 0.01 s")


def test_the_tables_count_outcomes_and_reasons():
    results = [
        Result("a", "tvm", Outcome.PASSED),
        Result("a", "executable", Outcome.PASSED),
        Result("b", "tvm", Outcome.SKIPPED, "TVM has no Det (node_1)"),
        Result("c", "tvm", Outcome.SKIPPED, "TVM has no Det (node_2)"),
        Result("d", "tvm", Outcome.WRONG, "error is 3.0 times what is allowed"),
    ]
    lines = tables(results, dict.fromkeys("abc", "ai.onnx") | {"d": "ai.onnx.ml"}).splitlines()
    assert "| ai.onnx | 3 | 1 | 0 | 2 | 0 |" in lines
    assert "| ai.onnx.ml | 1 | 0 | 0 | 0 | 1 |" in lines
    assert "| all | 4 | 1 | 0 | 2 | 1 |" in lines
    assert "| tvm | 1 | 2 | 1 |" in lines
    assert "| 2 | tvm | TVM has no … |" in lines
    assert lines[-1] == "wrong: d on tvm: error is 3.0 times what is allowed"


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        ([np.ones(2)], [np.ones(2)], ""),
        ([np.ones(2)], [np.zeros(2)], "wrong numbers in output 0"),
        ([[np.ones(2)]], [[]], "0 values, expected 1"),
        ([np.array(["a"])], [np.array(["a"], object)], ""),
        ([np.array(["a"])], [np.array(["b"], object)], "the texts differ"),
        ([{1: 2.0}], [{3: 2.0}], "the keys differ"),
        ([None], [np.ones(1)], "an optional value is missing"),
    ],
)
def test_values_of_every_kind_are_compared(expected, actual, reason):
    difference = values_differ(expected, actual)
    assert difference.startswith(reason)
    assert bool(difference) == bool(reason)


@pytest.mark.full
def test_a_seeded_tenth_has_no_wrong_number():
    assert not wrong(run_tests(chosen_tests(0.1, SEED)))

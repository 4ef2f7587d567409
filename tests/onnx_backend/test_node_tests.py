"""The node tests of `onnx.backend.test`: no backend gives a wrong number; `make onnx-tests` runs all."""

import pytest

from tests.onnx_backend.case import Outcome, Result
from tests.onnx_backend.run import chosen_tests, run_tests, table

FEW = ["test_relu", "test_gather_0"]
SEED = 1


def wrong(results):
    return [result for result in results if result.outcome is Outcome.WRONG]


def test_a_few_node_tests_pass_on_kernels_and_in_an_executable():
    results = list(run_tests(FEW))
    assert not wrong(results)
    passed = {(r.test, r.backend) for r in results if r.outcome is Outcome.PASSED}
    assert {
        (name, backend) for name in FEW for backend in ("onnxruntime", "tvm", "executable")
    } <= passed


def test_an_unknown_test_is_wrong_not_lost():
    (result,) = run_tests(["test_of_nothing"])
    assert (result.backend, result.outcome) == ("program", Outcome.WRONG)


def test_the_table_counts_outcomes_and_reasons():
    results = [
        Result("a", "tvm", Outcome.PASSED),
        Result("b", "tvm", Outcome.SKIPPED, "TVM has no Det (node_1)"),
        Result("c", "tvm", Outcome.SKIPPED, "TVM has no Det (node_2)"),
        Result("d", "tvm", Outcome.WRONG, "error is 3.0 times what is allowed"),
    ]
    text = table(results)
    assert "tvm                   1        2        1" in text
    assert "     2  tvm: TVM has no Det _" in text
    assert "wrong: d on tvm: error is 3.0" in text


@pytest.mark.full
def test_a_seeded_tenth_has_no_wrong_number():
    assert not wrong(run_tests(chosen_tests(0.1, SEED)))

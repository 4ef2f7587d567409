"""The pool outlives tasks that fail, threads that cannot be made, and callers that come together."""

import json
import subprocess
import sys
from typing import Any

import pytest


@pytest.fixture(scope="module", params=["openmp", "own"])
def outcomes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What became of a process's loops, by what was wrong with them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.pool_failures", request.param],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_an_exception_in_a_loop_reaches_its_caller(outcomes: dict[str, Any]) -> None:
    assert outcomes["failing"] == [{"errors": ["no memory"], "right": True}] * 2


def test_an_error_of_a_tvm_task_reaches_the_caller(outcomes: dict[str, Any]) -> None:
    assert outcomes["asserting"] == {"errors": ["RuntimeError: True"], "right": True}


def test_two_callers_at_once_have_right_results(outcomes: dict[str, Any]) -> None:
    assert outcomes["together"] == {"wrong": []}


def test_without_memory_for_threads_there_are_fewer(outcomes: dict[str, Any]) -> None:
    assert outcomes["limited"] == {"fewer": True, "right": True}

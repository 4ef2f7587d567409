"""The pool outlives tasks that fail, threads that cannot be made, and callers that come together."""

import json
import subprocess
import sys
from typing import Any

import pytest

OWN = ["", "-own"]


def run(mode: str, threads: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.pool_failures", mode, str(threads)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("threads", [2, 4])
def test_an_exception_in_a_loop_reaches_its_caller(own, threads):
    assert run(f"failing{own}", threads) == {"errors": ["no memory"], "right": True}


@pytest.mark.parametrize("own", OWN)
def test_what_a_task_of_tvm_says_reaches_the_caller(own):
    found = run(f"asserting{own}", 4)
    assert found["right"]
    assert len(found["errors"]) == 1
    assert found["errors"][0].endswith(": True")


@pytest.mark.parametrize("own", OWN)
def test_without_memory_for_threads_there_are_fewer(own):
    assert run(f"limited{own}", 256) == {"fewer": True, "right": True}


@pytest.mark.parametrize("own", OWN)
def test_two_callers_at_once_have_right_results(own):
    assert run(f"together{own}", 2) == {"wrong": []}

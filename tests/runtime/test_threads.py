"""Loops of TVM's kernels and of the plug-in's run on OpenMP's threads, and on nobody else's."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_one_pool_serves_all(threads):
    """TVM's loop adds no thread to those that were woken; a forked process gets a pool of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.pool_program", str(threads)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    counts = json.loads(done.stdout)
    assert 1 <= counts.pop("ran_on") <= threads  # a thread that comes late finds no work left
    assert counts == {"woken": threads - 1, "right": True, "more": 0, "child": 0}

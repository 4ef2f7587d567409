"""Processes that see the simulated GPU (`tests.simulated_gpu`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import simulated_gpu

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory):
    return simulated_gpu.build(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture
def on_gpu(toolkit, tmp_path):
    """Run a module in a process that sees the simulated GPU; return what it says.

    `variables` are added to its environment; `json` returns standard output alone.
    """

    def run(*arguments, fails=False, json=False, toolkit=toolkit, **variables):
        environment = simulated_gpu.environment(toolkit, tmp_path / "log")
        done = subprocess.run(
            [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False,
            env={**environment, "XDG_CACHE_HOME": str(tmp_path / "home"), **variables},
            cwd=ROOT, timeout=550,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout if json else done.stdout + done.stderr

    return run

"""The simulated GPU's log, for test modules in a process with it."""

import os
from pathlib import Path

import pytest

LOG = Path(os.environ["SIMULATED_GPU_LOG"])


@pytest.fixture(autouse=True)
def _log(tmp_path, monkeypatch):
    """Begin with an empty log, and a store of one's own."""
    LOG.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def logged(word):
    return [line for line in LOG.read_text().splitlines() if line.startswith(word)]

"""Worker processes of node tests (`tests.onnx_backend.worker`)."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.onnx_backend.results import PROGRAM, Outcome, Result

MAX_TEST_S = 300.0
"""Time limit of a test, in seconds."""


class Worker:
    """A worker process, started anew after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str) -> list[Result]:
        """Return the results of a test."""
        process = self._process = self._process or _start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(name + "\n")
        process.stdin.flush()
        limit = threading.Timer(MAX_TEST_S, process.kill)
        limit.start()
        results = []
        for line in process.stdout:
            if not line.strip():
                limit.cancel()
                return results
            fields = json.loads(line)
            results.append(Result(**{**fields, "outcome": Outcome(fields["outcome"])}))
        is_late = not limit.is_alive()
        limit.cancel()
        self.close()
        reason = f"more than {MAX_TEST_S:g} s" if is_late else f"ended with {process.returncode}"
        return [*results, Result(name, PROGRAM, Outcome.WRONG, f"the process: {reason}")]

    def close(self) -> None:
        """End the process after its last test."""
        if self._process:
            self._process.communicate()
        self._process = None


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.onnx_backend.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def run_tests(names: Sequence[str], jobs: int = 1) -> Iterator[Result]:
    """Yield the results of the tests, in order.

    Args:
        names: names of the tests.
        jobs: number of worker processes, default 1.
    """
    local, workers = threading.local(), list[Worker]()

    def run(name: str) -> list[Result]:
        if not hasattr(local, "worker"):
            local.worker = Worker()
            workers.append(local.worker)
        results: list[Result] = local.worker.run(name)
        return results

    pool = ThreadPoolExecutor(jobs)
    try:
        for results in pool.map(run, names):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()

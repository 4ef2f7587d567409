"""The node tests of `onnx.backend.test`: `python -m tests.onnx_backend.run [--share 0.1] [TEST ...]`.

Each test runs in a worker process; one that ends a process is wrong. The table counts passed, skipped (by
reason) and wrong results of each backend. Results go to `--results`, as JSON, one a line.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.onnx_backend.case import Outcome, Result, node_tests

MAX_REASONS = 40


def chosen_tests(share: float, seed: int) -> list[str]:
    """Return a seeded share of all tests, sorted."""
    names = sorted(node_tests())
    return sorted(random.Random(seed).sample(names, round(share * len(names))))


class Worker:
    """A worker process, started anew after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str) -> list[Result]:
        """Return the results of a test."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.onnx_backend.worker"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        results = []
        for line in self._process.stdout:
            if not line.strip():
                return results
            fields = json.loads(line)
            results.append(Result(**{**fields, "outcome": Outcome(fields["outcome"])}))
        self._process.stdout.close()
        self._process.stdin.close()
        code, self._process = self._process.wait(), None
        return [*results, Result(name, "program", Outcome.WRONG, f"the process ended with {code}")]

    def close(self) -> None:
        if self._process:
            self._process.communicate()


def run_tests(names: Sequence[str]) -> Iterator[Result]:
    """Yield the results of the tests, in order."""
    worker = Worker()
    try:
        for name in names:
            yield from worker.run(name)
    finally:
        worker.close()


def table(results: Sequence[Result]) -> str:
    """Return the counts by backend, the reasons of skips, and every wrong result."""
    counts = Counter((result.backend, result.outcome) for result in results)
    names = sorted({result.backend for result in results})
    lines = [f"{'backend':14}" + "".join(f"{outcome:>9}" for outcome in Outcome)]
    lines += [f"{name:14}" + "".join(f"{counts[name, o]:9}" for o in Outcome) for name in names]
    reasons = Counter(
        (result.backend, kind_of(result.reason))
        for result in results
        if result.outcome is Outcome.SKIPPED
    )
    lines += ["", "skipped because"]
    lines += [
        f"{n:6}  {backend}: {reason}" for (backend, reason), n in reasons.most_common(MAX_REASONS)
    ]
    wrong = [result for result in results if result.outcome is Outcome.WRONG]
    lines += [f"wrong: {result.test} on {result.backend}: {result.reason}" for result in wrong]
    return "\n".join(lines)


def kind_of(reason: str) -> str:
    """Return the reason without names and numbers."""
    return re.sub(r"\'[^\']*\'|\([^)]*\)|\d[\d.]*", "_", reason)[:90]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help="names of tests; default: all")
    parser.add_argument("--share", type=float, default=1.0, help="share of all tests, default 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("build/onnx_tests.jsonl"))
    arguments = parser.parse_args()
    names = arguments.tests or chosen_tests(arguments.share, arguments.seed)
    results = []
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    with arguments.results.open("w") as stream:
        for result in run_tests(names):
            results.append(result)
            print(json.dumps(vars(result)), file=stream, flush=True)
    print(table(results))
    return int(any(result.outcome is Outcome.WRONG for result in results))


if __name__ == "__main__":
    sys.exit(main())

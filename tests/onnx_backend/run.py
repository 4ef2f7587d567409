"""The node tests of `onnx.backend.test`: `python -m tests.onnx_backend.run [--share 0.1] [TEST ...]`.

Each test runs in a worker process; one that ends a process, or takes more than `MAX_TEST_S`, is wrong. The
tables count passed, skipped (by reason) and wrong results; docs/onnx-tests.md has those of all tests. Results
go to `--results`, as JSON, one a line.
"""

import argparse
import json
import random
import sys
from pathlib import Path

from tests.onnx_backend.node_tests import domains_by_test, node_tests
from tests.onnx_backend.results import Outcome, tables
from tests.onnx_backend.workers import run_tests


def chosen_tests(share: float, seed: int) -> list[str]:
    """Return a seeded share of all tests, sorted."""
    names = sorted(node_tests())
    return sorted(random.Random(seed).sample(names, round(share * len(names))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help="names of tests; default: all")
    parser.add_argument("--share", type=float, default=1.0, help="share of all tests, default 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="number of worker processes, default 1")
    parser.add_argument("--results", type=Path, default=Path("build/onnx_tests.jsonl"))
    arguments = parser.parse_args()
    names = arguments.tests or chosen_tests(arguments.share, arguments.seed)
    results = []
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    with arguments.results.open("w") as stream:
        for result in run_tests(names, arguments.jobs):
            results.append(result)
            print(json.dumps(vars(result)), file=stream, flush=True)
    print(tables(results, domains_by_test()))
    return int(any(result.outcome is Outcome.WRONG for result in results))


if __name__ == "__main__":
    sys.exit(main())

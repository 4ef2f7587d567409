"""Runs the node tests named on standard input; writes results as JSON, and an empty line after each test."""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.onnx_backend.case import Outcome, Result, run_test


def main() -> None:
    # Toolchains write to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name = line.strip()
        with tempfile.TemporaryDirectory() as folder:
            try:
                for result in run_test(name, Path(folder)):
                    print(json.dumps(dataclasses.asdict(result)), file=answers, flush=True)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".strip().splitlines()[-1][:200]
                failed = Result(name, "program", Outcome.WRONG, reason)
                print(json.dumps(dataclasses.asdict(failed)), file=answers, flush=True)
        print(file=answers, flush=True)


if __name__ == "__main__":
    main()

"""Runs the node tests named on standard input; writes results as JSON, and an empty line after each test."""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

from tests.onnx_backend.case import run_test
from tests.onnx_backend.results import PROGRAM, Outcome, Result


def main() -> None:
    # Toolchains write to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name = line.strip()
        with tempfile.TemporaryDirectory() as folder:
            try:
                for result in run_test(name, Path(folder)):
                    print(json.dumps(vars(result)), file=answers, flush=True)
            except Exception as error:
                failed = Result(name, PROGRAM, Outcome.WRONG, _reason(error))
                print(json.dumps(vars(failed)), file=answers, flush=True)
        print(file=answers, flush=True)


def _reason(error: Exception) -> str:
    """Return the error's first line, and the place that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
    return f"{text} ({Path(place.filename).name}, {place.name})"


if __name__ == "__main__":
    main()

"""Compile every hostile model in one process that has done nothing else: a line of JSON each."""

import contextlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.cli import main
from collage.frontend import survey
from collage.import_limits import SECONDS
from tests.frontend.hostile_models import HOSTILE


def peak_bytes() -> int:
    """The most memory that this process and a child of it ever had.

    Not RUSAGE_SELF for this process: that keeps what its parent had when it made this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


@contextlib.contextmanager
def captured(output: Path, errors: Path) -> Iterator[None]:
    """Write to files what this process and its children print, whichever way they do it."""
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        for number, file in ((1, output), (2, errors)):
            with file.open("wb") as target:
                os.dup2(target.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in saved.items():
            os.dup2(descriptor, number)
            os.close(descriptor)


def compiled(folder: Path, name: str) -> dict[str, object]:
    folder.mkdir()
    model = folder / "model.onnx"
    model.write_bytes(HOSTILE[name][1]())
    command = ["compile", model, "-o", folder / "out", "--cache-dir", folder,
               "--backends", "onnxruntime", "--effort", "quick", "--quiet"]  # fmt: skip
    code: object = None
    output, errors = folder / "stdout", folder / "stderr"
    with pytest.MonkeyPatch.context() as patch, captured(output, errors):
        if name == "millions_of_empty_metadata":
            patch.setattr(survey, "MAX_MESSAGES", 100_000)
        if name == "loop_without_end":
            patch.setenv(SECONDS, "3")
        try:
            code = main([*map(str, command)])
        except BaseException:
            traceback.print_exc()
    return {
        "name": name,
        "code": code,
        "out": output.read_text(errors="replace"),
        "err": errors.read_text(errors="replace"),
        "model": str(model),
        "peak_bytes": peak_bytes(),
        "left": (folder / "out").exists(),
    }


if __name__ == "__main__":
    for name in HOSTILE:
        print(json.dumps(compiled(Path(sys.argv[1]) / name, name)), flush=True)

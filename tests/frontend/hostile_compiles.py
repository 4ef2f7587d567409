"""Compile every hostile model in one process that has done nothing else: a line of JSON each."""

import contextlib
import io
import json
import os
import resource
import sys
import traceback
from pathlib import Path

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


def compiled(folder: Path, name: str) -> dict[str, object]:
    folder.mkdir()
    model = folder / "model.onnx"
    model.write_bytes(HOSTILE[name][1]())
    command = ["compile", model, "-o", folder / "out", "--cache-dir", folder,
               "--backends", "onnxruntime", "--effort", "quick", "--quiet"]  # fmt: skip
    default_limit = survey.MAX_MESSAGES
    if name == "millions_of_empty_metadata":
        survey.MAX_MESSAGES = 100_000
    os.environ[SECONDS] = "3" if name == "loop_without_end" else "45"
    said = io.StringIO()
    code: object = None
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main([*map(str, command)])
    except BaseException:
        said.write(traceback.format_exc())
    survey.MAX_MESSAGES = default_limit
    return {
        "name": name,
        "code": code,
        "said": said.getvalue(),
        "model": str(model),
        "peak_bytes": peak_bytes(),
        "left": (folder / "out").exists(),
    }


if __name__ == "__main__":
    for name in HOSTILE:
        print(json.dumps(compiled(Path(sys.argv[1]) / name, name)), flush=True)

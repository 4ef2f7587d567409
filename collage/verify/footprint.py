"""Load time and memory of a bundle and of ONNX Runtime: `python -m collage.verify.footprint`.

Each is measured in a process of its own that does nothing else: it opens the model, answers the golden inputs
of every function once, and tells its resident memory. The bundle opens its fallback too. Both processes have
the same Python modules before they start.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage.errors import MeasureError
from collage.runtime.child_environment import child_environment
from collage.runtime.loader import load
from collage.runtime.plugin import library_environment, thread_environment
from collage.verify.benchmark_worker import session_options
from collage.verify.original_model import open_file

if TYPE_CHECKING:
    import onnxruntime

FOOTPRINT_TIMEOUT_S = 300.0
"""Time limit of one process, in seconds."""


@dataclass(frozen=True)
class Footprint:
    """Cost of keeping a model open.

    Attributes:
        load_s: time until the first call can start, in seconds.
        rss_bytes: resident memory of the process after calls of every function, in bytes.
    """

    load_s: float
    rss_bytes: int


def bundle_footprint(bundle: Path, threads: int) -> Footprint:
    """Measure a bundle with its fallback open. Raises MeasureError if its process dies."""
    return _measured(["bundle", str(bundle)], threads)


def onnxruntime_footprint(
    models: Sequence[tuple[Path, Sequence[Mapping[str, np.ndarray]]]], threads: int, work_dir: Path
) -> Footprint:
    """Measure ONNX Runtime with original models and their feeds. Raises MeasureError if it dies."""
    arguments = ["onnxruntime"]
    for place, (model, feeds) in enumerate(models):
        arguments.append(str(model))
        for number, feed in enumerate(feeds):
            arguments.append(str(work_dir / f"footprint-{place}-{number}.npz"))
            np.savez(arguments[-1], **feed)  # type: ignore[arg-type]
    return _measured(arguments, threads)


def _measured(arguments: Sequence[str], threads: int) -> Footprint:
    environment = child_environment() | thread_environment(threads) | library_environment()
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(threads), *arguments],
            env=environment,
            capture_output=True,
            timeout=FOOTPRINT_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout)
        return Footprint(float(answer["load_s"]), int(answer["rss_bytes"]))
    except (subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"the memory of {arguments[0]} cannot be measured: {error}") from error


def _main() -> None:
    threads, kind, *paths = sys.argv[1:]
    load_s = _run_bundle(paths[0]) if kind == "bundle" else _run_onnxruntime(paths, int(threads))
    print(json.dumps({"load_s": load_s, "rss_bytes": _rss_bytes()}))


def _run_bundle(path: str) -> float:
    start = time.perf_counter()
    bundle = load(path, warm=True)
    load_s = time.perf_counter() - start
    for signature in bundle.signatures:
        bundle.run(bundle.golden_inputs(signature.function), signature.entry)
    return load_s


def _run_onnxruntime(paths: Sequence[str], threads: int) -> float:
    """Open each model, and run the feeds that follow it."""
    load_s = 0.0
    sessions: list[onnxruntime.InferenceSession] = []
    for path in paths:
        if path.endswith(".npz"):
            with np.load(path) as feed:
                sessions[-1].run(None, dict(feed))
            continue
        start = time.perf_counter()
        sessions.append(open_file(path, session_options(threads), ["CPUExecutionProvider"]))
        load_s += time.perf_counter() - start
    return load_s


def _rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status does not tell the resident memory")


if __name__ == "__main__":
    _main()

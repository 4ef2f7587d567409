"""Watch every entry point for a while: `python -m tests.quiet --seconds 60`.

Prints a row per entry point: how long it lived, sockets that nobody named, files outside its folders. The
last row is ONNX Runtime without Collage, which has to be found out. Needs strace and a C++ compiler, and
Prefect for the row of the flows. Exits with 1 where a row is not as it should be.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.quiet import entry_points
from tests.quiet.entry_points import Behaviour, Watched, watch
from tests.quiet.models import tiny_model
from tests.quiet.shards import put_batch
from tests.quiet.trace import require_strace
from tests.servers.prefect import Server
from tests.servers.receiver import PrefectRecorder

OPTIONS = {
    "backends": ["onnxruntime"], "measure_budget_s": 15, "refine_s": 0, "verify_s": 0.1,
}  # fmt: skip
CONTROL = "onnxruntime alone"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="after its work (default 60)")
    seconds = parser.parse_args().seconds
    require_strace()
    wrong = False
    with tempfile.TemporaryDirectory(prefix="collage-quiet-") as folder:
        for name, make in programs(Path(folder), seconds):
            place = Path(folder) / "watched" / name.replace(" ", "-")
            begin = time.monotonic()
            behaviour = watch(make(place), place)
            wrong |= _tell(name, time.monotonic() - begin, behaviour)
    return int(wrong)


def _tell(name: str, lived_s: float, behaviour: Behaviour) -> bool:
    """Print a row; tell whether it is not as it should be."""
    failed = behaviour.trace.code not in (0, -15)
    counts = f"{len(behaviour.sockets):>3} sockets {len(behaviour.files):>3} files"
    print(f"{name:<20}{lived_s:6.0f} s  {counts}  {'FAILED' if failed else ''}", flush=True)
    for event in (*behaviour.sockets, *sorted(behaviour.trace.names), *behaviour.files):
        print(f"    {event}")
    if failed:
        print(behaviour.trace.output)
    quiet = not (behaviour.sockets or behaviour.files)
    return failed or quiet == (name == CONTROL)


def programs(folder: Path, seconds: float) -> Iterator[tuple[str, Callable[[Path], Watched]]]:
    """Yield the name of each entry point, and what makes its program for the folder of its watch."""
    model, bundle = tiny_model(folder / "tiny.onnx"), folder / "compiled" / "bundle"
    for name in ("compiled", "cpp", "receiver"):
        (folder / name).mkdir()
    yield "compile", lambda _: entry_points.compile_(model, bundle, seconds)
    yield "load and run", lambda _: entry_points.load(bundle, seconds)
    yield "bench", lambda _: entry_points.bench(model, bundle, seconds)
    yield "serve", lambda _: entry_points.serve(bundle, seconds)
    program = entry_points.built_example(folder / "cpp")
    yield "C++ example", lambda _: entry_points.cpp(program, bundle, seconds)
    batch = put_batch(model, folder / "store", size=2)
    yield "measure", lambda _: entry_points.measure(folder / "store", batch, seconds)
    prefect = PrefectRecorder()
    yield "receiver", lambda _: entry_points.receiver(folder / "receiver", prefect, seconds)
    prefect.close()
    server = Server(folder / "prefect")
    try:
        flow_folder = folder / "flow"
        yield "flow", lambda _: entry_points.flow(model, flow_folder, server.ui, OPTIONS, seconds)
    finally:
        server.close()
    yield CONTROL, entry_points.onnxruntime_alone


if __name__ == "__main__":
    sys.exit(main())

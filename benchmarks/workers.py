"""Time of a cold compile by number of workers: `python -m benchmarks.workers [--models resnet18]`.

Every compile has its own store. Kernels have one thread, so that a second worker can build on another core
while the first worker is timed; one worker at a time is timed. The predicted latency of the best plan shows
whether workers disturb each other.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.model_set import BenchmarkModel, chosen_models, model_options
from benchmarks.results import machine, write_section

NAMES = "bert_base_2l,resnet18,ppocr_cls"
WORKERS_HEADER = (
    "| model | workers | cold s | of it measuring s | measured | predicted ms |\n"
    "|---|---|---|---|---|---|"
)


def row(model: BenchmarkModel, workers: int) -> str:
    """Compile cold with this number of workers; return the row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        command = [
            sys.executable, "-m", "collage", "compile", str(model.path), "-o", str(work / "bundle"),
            "--cache-dir", str(work / "store"), "--threads", "1", "--workers", str(workers),
            "--json", "--quiet", *model.arguments,
        ]  # fmt: skip
        start = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.monotonic() - start
    facts = json.loads(done.stdout)
    return (
        f"| {model.name} | {workers} | {seconds:.0f} | {facts['seconds']['measure']:.0f} "
        f"| {facts['candidates']['measured']} | {facts['predicted_s'] * 1e3:.2f} |"
    )


def main() -> None:
    arguments = model_options(__doc__).parse_args()
    counts = sorted({1, 2, os.cpu_count() or 1} & set(range(1, (os.cpu_count() or 1) + 1)))
    rows = []
    for model in chosen_models(arguments.work, arguments.models or NAMES):
        for workers in counts:
            rows.append(row(model, workers))
            print(rows[-1], flush=True)
            write_section(arguments.output, "workers", document(rows))


def document(rows: list[str]) -> str:
    return (
        f"## Workers\n\n`python -m benchmarks.workers` on {machine()}.\n"
        "One worker at a time is timed; the others build meanwhile.\n\n"
        + "\n".join([WORKERS_HEADER, *rows])
        + "\n"
    )


if __name__ == "__main__":
    main()

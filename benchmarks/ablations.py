"""What each lever gives: compile with all toolchains, then without one at a time.

    python -m benchmarks.ablations [--output benchmarks/ABLATIONS.md] [--models resnet18] [--threads 1]

All compiles of a model share one store, so each measures only what the others did not. A cell is the
speedup of the shipped plan over the better of onnxruntime and openvino on the original file, measured
interleaved by the gate of that compile.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.model_set import BenchmarkModel, chosen_models
from benchmarks.models import geometric_mean, machine

ALL = ("onnxruntime", "openvino", "onednn", "tvm", "winograd")
WITHOUT = ("winograd", "onednn", "tvm", "onnxruntime", "openvino")
CASES = {"all": (), **{f"without {name}": (name,) for name in WITHOUT}}
CASES["onnxruntime and openvino only"] = ("onednn", "tvm", "winograd")


def speedup(model: BenchmarkModel, work: Path, threads: int, left_out: tuple[str, ...]) -> float:
    """Compile without some backends and return the gate's speedup over the best framework."""
    used = ",".join(name for name in ALL if name not in left_out)
    command = [
        sys.executable, "-m", "collage", "compile", str(model.path), "--backends", used,
        "-o", str(work / f"{model.name}.collage"), "--cache-dir", str(work / "store" / model.name),
        "--threads", str(threads), "--json", "--quiet", *model.arguments,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}")
    return float(json.loads(done.stdout)["speedup_over_best"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/ABLATIONS.md"))
    parser.add_argument("--models", help="comma-separated names; default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "collage-bench")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    table: dict[str, list[float]] = {}
    for model in chosen_models(arguments.work, arguments.models):
        table[model.name] = [
            speedup(model, arguments.work, arguments.threads, left_out)
            for left_out in CASES.values()
        ]
        print(model.name, *(f"{value:.3f}" for value in table[model.name]), flush=True)
        arguments.output.write_text(_document(table, arguments.threads))


def _document(table: dict[str, list[float]], threads: int) -> str:
    columns = list(zip(*table.values(), strict=True))
    means = [geometric_mean(column) for column in columns]
    rows = [*table.items(), ("geometric mean", means)]
    lines = [
        f"| {name} | " + " | ".join(f"{value:.3f}" for value in row) + " |" for name, row in rows
    ]
    return (
        f"# What each lever gives\n\n`python -m benchmarks.ablations --threads {threads}` on "
        f"{machine()}.\nSpeedup over the better of onnxruntime and openvino on the original file.\n\n"
        f"| model | {' | '.join(CASES)} |\n|{'---|' * (len(CASES) + 1)}\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    main()

"""Contribution of each toolchain: the plan with all toolchains, then without one at a time.

    python -m benchmarks.ablations [--models resnet18] [--threads 1]
    python -m benchmarks.ablations --compile ...

Without `--compile` the table is predicted: the best plan without a lever against the best plan with all, from
the costs in the stores of `make bench`, exactly and within seconds. With it every cell is a compile (all of a
model share one store): the speedup of the shipped plan over the better of onnxruntime and openvino on the
original file, measured interleaved by the gate of that compile.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.known_costs import KnownCosts, known_costs
from benchmarks.model_set import BenchmarkModel, chosen_models, model_options, store_of
from benchmarks.models import geometric_mean
from benchmarks.results import machine, write_section
from collage.errors import SearchError
from collage.rules.rule import HOST
from collage.search.problem import Option

ALL = ("onnxruntime", "openvino", "onednn", "tvm", "winograd", "blocked")
WITHOUT = ("winograd", "blocked", "onednn", "tvm", "onnxruntime", "openvino")
CASES = {"all": (), **{f"without {name}": (name,) for name in WITHOUT}}
CASES["onnxruntime and openvino only"] = ("onednn", "tvm", "winograd", "blocked")

LEVERS: dict[str, Callable[[Option], bool]] = {
    "our Winograd": lambda option: option.backend != "winograd",
    "our blocked kernels": lambda option: option.backend != "blocked",
    "our TVM schedules": lambda option: option.backend != "tvm",
    "oneDNN": lambda option: option.backend != "onednn",
    "oneDNN's layouts": lambda option: (option.backend, option.variant) != ("onednn", "blocked"),
    "ONNX Runtime": lambda option: option.backend != "onnxruntime",
    "OpenVINO": lambda option: option.backend != "openvino",
}
"""For each lever, a predicate of the options without it."""


def speedup(model: BenchmarkModel, work: Path, threads: int, left_out: tuple[str, ...]) -> float:
    """Compile without some backends and return the gate's speedup over the best framework."""
    used = ",".join(name for name in ALL if name not in left_out)
    command = [
        sys.executable, "-m", "collage", "compile", str(model.path), "--backends", used,
        "-o", str(work / f"{model.name}.collage"), "--cache-dir", str(store_of(model, work)),
        "--threads", str(threads), "--json", "--quiet", "--no-fallback", "--allow-slower",
        *model.arguments,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}")
    return float(json.loads(done.stdout)["speedup_over_best"])


def slowdowns(model: BenchmarkModel, work: Path, threads: int) -> list[float]:
    """Predict the slowdown of the best plan without each lever, and without mixing."""
    with known_costs(model, store_of(model, work), threads) as model_costs:
        best = model_costs.best().predicted_s
        without = [model_costs.best(keep).predicted_s for keep in LEVERS.values()]
        single = min(_single_backend_s(model_costs, name) for name in ALL)
    return [seconds / best for seconds in (*without, single)]


def _single_backend_s(model_costs: KnownCosts, name: str) -> float:
    try:
        return model_costs.best(partial(_is_on_backend, name)).predicted_s
    except SearchError:
        return math.inf


def _is_on_backend(name: str, option: Option) -> bool:
    return option.backend in (name, HOST)


def main() -> None:
    parser = model_options(__doc__)
    parser.add_argument("--compile", action="store_true", help="measure whole plans: slow")
    arguments = parser.parse_args()
    table: dict[str, list[float]] = {}
    section = "ablations" if arguments.compile else "levers"
    for model in chosen_models(arguments.work, arguments.models):
        if arguments.compile:
            table[model.name] = [
                speedup(model, arguments.work, arguments.threads, left_out)
                for left_out in CASES.values()
            ]
        else:
            table[model.name] = slowdowns(model, arguments.work, arguments.threads)
        print(model.name, *(f"{value:.3f}" for value in table[model.name]), flush=True)
        write_section(arguments.output, section, _document(table, arguments))


def _document(table: dict[str, list[float]], arguments: argparse.Namespace) -> str:
    if arguments.compile:
        columns, option = [*CASES], " --compile"
        caption = "Speedup over the better of onnxruntime and openvino on the original file."
    else:
        columns, option = [*LEVERS, "mixing toolchains"], ""
        caption = "How many times slower the best plan is predicted to be without a lever."
    values = zip(*table.values(), strict=True)
    means = [geometric_mean(column) for column in values]
    rows = [*table.items(), ("geometric mean", means)]
    lines = [
        f"| {name} | " + " | ".join(f"{value:.3f}" for value in row) + " |" for name, row in rows
    ]
    return (
        f"## What each lever gives\n\n`python -m benchmarks.ablations{option} --threads "
        f"{arguments.threads}` on {machine()}.\n{caption}\n\n"
        f"| model | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    main()

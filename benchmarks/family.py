"""Measurements of a second model of a family: the same blocks, another depth.

    python -m benchmarks.family [--models bert_base_2l,resnet18] [--threads 1]

The deeper model is the skeleton; the shallower one is its first half, cut at a position with one live tensor.
The shallow model is compiled first, then the deep model in the same store, then the deep model in its own
store. Both bundles of the deep model run interleaved in fresh processes, as often as in `benchmarks.models`:
costs measured for another model must not make a slower executable. With `--models` the rows of further models
stay unchanged.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

import onnx
from onnx.utils import Extractor

from benchmarks.model_set import model_options, skeletons
from benchmarks.models import SET_S, SETS
from benchmarks.results import Facts, machine, revisions, write_rows
from collage.frontend import import_model
from collage.graph.cut_points import cut_points
from collage.pipeline.bundle_comparison import saved_targets
from collage.verify import compare_latency, ratio

NAMES = ("bert_base_2l", "gpt2_2l", "resnet18")
FAMILY_HEADER = (
    "| model | unique | measured after its shallow half | measured alone | latency after / alone |\n"
    "|---|---|---|---|---|"
)


def shallow(path: Path, work: Path) -> Path:
    """Cut the model near its middle, at the last position with one live tensor."""
    function = import_model(path, work_dir=work).functions[0]
    graph = function.graph
    half = [position for position in cut_points(graph) if position <= len(graph) // 2]
    value = graph.nodes[half[-1] - 1].outputs[0]
    source = onnx.load(function.simplified)
    inputs = [graph_input.name for graph_input in source.graph.input]
    target = work / f"{path.stem}-shallow.onnx"
    onnx.save(Extractor(source).extract_model(inputs, [value]), target)
    return target


def compile_(model: Path, store: Path, bundle: Path, threads: int) -> dict[str, int]:
    """Compile and return the counts of candidates."""
    command = [
        sys.executable, "-m", "collage", "compile", str(model), "-o", str(bundle),
        "--cache-dir", str(store), "--threads", str(threads), "--json", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    counts: dict[str, int] = json.loads(done.stdout)["candidates"]
    return counts


def measure(name: str, threads: int) -> Facts:
    """Compile the shallow model, then the deep one after it and alone."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (model,) = skeletons(work, [name])
        compile_(shallow(model.path, work), work / "store", work / "shallow", threads)
        after, alone = work / "after", work / "alone"
        second = compile_(model.path, work / "store", after, threads)
        first = compile_(model.path, work / "own-store", alone, threads)
        times = latency_ratio(after, alone, work)
    return {
        "model": name, "unique": second["unique"], "after": second["measured"],
        "alone": first["measured"], "latency_ratio": times,
    }  # fmt: skip


def row(facts: Facts) -> str:
    after, unique = facts["after"], facts["unique"]
    return (
        f"| {facts['model']} | {unique} | {after} ({after / unique:.0%}) | {facts['alone']} "
        f"| {facts['latency_ratio']:.3f} |"
    )


def latency_ratio(bundle: Path, reference: Path, work: Path) -> float:
    """Return the latency of a bundle over that of `reference`, the median of SETS."""
    first = saved_targets(bundle.name, bundle)[0]
    second = saved_targets(reference.name, reference)[0]
    pair, threads = [first.target, second.target], first.manifest.threads
    sets = [compare_latency(pair, first.inputs, threads, SET_S, work_dir=work) for _ in range(SETS)]
    return statistics.median(
        ratio(latencies[bundle.name], latencies[reference.name]) for latencies in sets
    )


def main() -> None:
    parser = model_options(__doc__)
    arguments = parser.parse_args()
    names = arguments.models.split(",") if arguments.models else NAMES
    measured = (measure(name, arguments.threads) for name in names)
    write_rows(arguments, "family", measured, document)


def document(facts: list[Facts], arguments: Namespace) -> str:
    return (
        "## A second model of the family\n\n"
        f"`python -m benchmarks.family --threads {arguments.threads}` on {machine()}{revisions(facts)}.\n"
        "Candidates of the whole model that are measured after its first half was compiled in the same\n"
        "store, and the latency of the bundle that came of it over that of one compiled alone.\n\n"
        + "\n".join([FAMILY_HEADER, *map(row, facts)])
        + "\n"
    )


if __name__ == "__main__":
    main()

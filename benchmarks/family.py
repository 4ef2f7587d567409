"""What a second model of a family still measures: the same blocks, another depth.

    python -m benchmarks.family [--models bert_base_2l,resnet18]

The deeper model is the skeleton; the shallower one is cut off after its first half, at a place where
one tensor is live. The shallow one is compiled first, then the deep one in the same store, then the
deep one in a store of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx.utils import Extractor

from benchmarks.model_set import skeletons
from collage.frontend import import_model
from collage.graph.cuts import cut_points

NAMES = ("bert_base_2l", "gpt2_2l", "resnet18")


def shallow(path: Path, work: Path) -> Path:
    """Cut the model off near its middle, after the last tensor that alone is live there."""
    function = import_model(path, work_dir=work).functions[0]
    graph = function.graph
    half = [position for position in cut_points(graph) if position <= len(graph) // 2]
    value = graph.nodes[half[-1] - 1].outputs[0]
    source = onnx.load(function.simplified)
    inputs = [one.name for one in source.graph.input]
    target = work / f"{path.stem}-shallow.onnx"
    onnx.save(Extractor(source).extract_model(inputs, [value]), target)
    return target


def compile_(model: Path, store: Path, work: Path) -> dict[str, int]:
    """Compile and return the counts of candidates."""
    command = [
        sys.executable, "-m", "collage", "compile", str(model), "-o", str(work / "bundle"),
        "--cache-dir", str(store), "--threads", "1", "--json", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    counts: dict[str, int] = json.loads(done.stdout)["candidates"]
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default=",".join(NAMES))
    names = parser.parse_args().models.split(",")
    print(
        "| model | unique | measured after its shallow half | measured alone |\n|---|---|---|---|"
    )
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (model,) = skeletons(work, [name])
            compile_(shallow(model.path, work), work / "store", work)
            second = compile_(model.path, work / "store", work)
            alone = compile_(model.path, work / "alone", work)
        unique = second["unique"]
        share = f"{second['measured']} ({second['measured'] / unique:.0%})"
        print(f"| {name} | {unique} | {share} | {alone['measured']} |", flush=True)


if __name__ == "__main__":
    main()

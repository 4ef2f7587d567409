"""Seeded inputs, and what every value of the function is on them."""

from collections.abc import Mapping
from pathlib import Path

import json
import numpy as np
import onnx

from collage.frontend.fold import session
from collage.frontend.model import Function


def random_inputs(function: Function, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for name in function.graph.inputs:
        of = function.graph.types[name]
        if of.dtype == "bool":
            found[name] = rng.integers(0, 2, of.shape).astype(bool)
        elif "int" in of.dtype:
            top = 2 if "mask" in name else 100
            low = 1 if "mask" in name else 0
            found[name] = rng.integers(low, top, of.shape).astype(of.dtype)
        else:
            found[name] = rng.standard_normal(of.shape).astype(of.dtype)
    return found


def reference_values(function: Function, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = onnx.load(function.simplified)
    names = [n for node in function.graph.nodes for n in node.outputs if n]
    have = {v.name for v in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    run = session(model.SerializeToString())
    return dict(inputs) | dict(zip(names, run.run(names, dict(inputs)), strict=True))


def save_reference(values: Mapping[str, np.ndarray], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    for position, (name, value) in enumerate(values.items()):
        np.save(folder / f"{position}.npy", value)
        index[name] = f"{position}.npy"
    (folder / "index.json").write_text(json.dumps(index))


def load_reference(folder: Path) -> dict[str, np.ndarray]:
    index = json.loads((folder / "index.json").read_text())
    return {name: np.load(folder / file, mmap_mode="r") for name, file in index.items()}

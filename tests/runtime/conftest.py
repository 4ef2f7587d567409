"""A small bundle: relu for two shapes, each in ONNX Runtime and then in OpenVINO."""

import hashlib
import json

import numpy as np
import pytest
import tvm

from collage.runtime.plugin import library_version
from tests.runtime import executables

SHAPES = {"main": (1, 8), "main_1": (2, 8)}


def _digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tensor(name, shape):
    """Build a manifest's entry of a tensor."""
    return {"name": name, "shape": list(shape), "dtype": "float32"}


def gate_entry(function, verdict="not slower"):
    """Build what a manifest says of the gate's judgement of one function."""
    return {"function": function, "verdict": verdict, "reason": "a test", "deterministic": True}


def write_manifest(folder, **changes):
    files = [folder / name for name in ("model.so", "golden.npz")]
    manifest = {
        "schema_version": 3,
        "gate": [gate_entry(name) for name in SHAPES],
        "executable": "model.so",
        "functions": [
            {"function": name, "inputs": [tensor("x", shape)], "outputs": [tensor("y", shape)]}
            for name, shape in SHAPES.items()
        ],
        "threads": 1,
        "cpu": {"model": "any", "features": ["sse2"]},
        "libraries": {
            name: {"distribution": name, "version": library_version(name)}
            for name in ("onnxruntime", "openvino")
        },
        "files": {file.name: _digest(file) for file in files},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def _executable():
    """Both shapes in one module: relu in ONNX Runtime, then in OpenVINO."""
    combined = tvm.IRModule()
    kernels = []
    for name, shape in SHAPES.items():
        blob = executables.onnx_blob(executables.relu_model(shape))
        module = executables.chain(
            [("onnxruntime", blob), ("openvino", blob)],
            [(shape, "float32")],
            [(shape, "float32")],
            name,
        )
        kernels += list(module.attrs["external_mods"])
        combined.update_func(tvm.ir.GlobalVar(name), module[name])
    return combined.with_attr("external_mods", kernels)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    executables.export(_executable(), folder / "model.so")
    golden = {}
    for name, shape in SHAPES.items():
        x = np.random.default_rng(1).standard_normal(shape).astype("float32")
        golden[f"{name}/input/x"] = x
        golden[f"{name}/output/y"] = np.maximum(x, 0)
    np.savez(folder / "golden.npz", **golden)
    write_manifest(folder)
    return folder

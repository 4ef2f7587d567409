"""A bundle of relu for one shape, with padding of its rows and a fallback."""

import shutil
from pathlib import Path

from collage.frontend.original_interface import read_interface
from collage.runtime.fallback import Fallback, fallback_document
from collage.store.blobs import digest_of
from tests.runtime.conftest import write_manifest


def add_ways(folder: Path, file: Path) -> None:
    """Give the copy of the bundle of relu the function [2, 8], padding, and the fallback `file`."""
    interface = read_interface(file)
    fallback = Fallback("onnxruntime", file.name, interface.inputs, interface.outputs)
    padding = {"input": "x", "axis": 0, "value": 0.0, "crops": [
        {"output": "y", "axis": 0, "divisor": 1, "offset": 0}]}  # fmt: skip
    names = {"model.so", "golden.npz", file.name, *(f.name for f in folder.glob("defaults.npz"))}
    write_manifest(
        folder,
        fallbacks=[fallback_document(fallback)],
        padding={"main": [padding]},
        defaults={"main": list(interface.defaults)},
        functions=[
            {
                "function": "main_1",
                "inputs": [{"name": "x", "shape": [2, 8], "dtype": "float32"}],
                "outputs": [{"name": "y", "shape": [2, 8], "dtype": "float32"}],
            }
        ],
        files={name: digest_of(folder / name) for name in names},
    )


def copied(bundle: Path, folder: Path) -> Path:
    """Return a copy of the bundle in a new folder."""
    return Path(shutil.copytree(bundle, folder / "bundle"))

"""The C++ example serves a bundle in a process without Python."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from onnx.helper import make_node as node

import collage
from collage.runtime.plugin import LIBRARY_FOLDER, library_path
from tests.frontend.build import model, save

SOURCE = Path(__file__).parents[2] / "examples" / "cpp"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The example, built."""
    folder = tmp_path_factory.mktemp("example")
    packages = Path(tvm_ffi.__file__).parent
    configure = ["cmake", "-S", SOURCE, "-B", folder, f"-DTVM_FFI_DIR={packages}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder], check=True, capture_output=True)
    return folder / "serve_bundle"


def _environment():
    names = ("onnxruntime", "openvino")
    return {f"COLLAGE_LIB_{name.upper()}": str(library_path(name)) for name in names}


def test_outputs_whose_shape_depends_on_data(server, tmp_path):
    nodes = [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["n"])]
    made = model(nodes, {"x": ("float32", (2, 8))}, ["n", "r"])
    options = collage.Options(
        threads=1, cache_dir=tmp_path / "store", verify_s=0.1, measure_budget_s=5
    )
    collage.compile(save(made, tmp_path), options, output=tmp_path / "bundle")
    np.arange(-8, 8, dtype="float32").tofile(tmp_path / "x.bin")
    command = [server, LIBRARY_FOLDER, tmp_path / "bundle", tmp_path / "x.bin"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    # 7 places of 2 int64: row 1, columns 1 to 7.
    assert "112 bytes  checksum 35" in done.stdout
    assert "64 bytes  checksum 28" in done.stdout


def test_the_example_serves_a_bundle(server, bundle, tmp_path):
    np.arange(-4, 4, dtype="float32").tofile(tmp_path / "x.bin")
    command = [server, LIBRARY_FOLDER, bundle, tmp_path / "x.bin"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    assert "checksum 6" in done.stdout
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'onnxruntime" in done.stderr

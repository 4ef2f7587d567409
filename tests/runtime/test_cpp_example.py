"""The C++ example serves a bundle in a process without Python."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from collage.runtime.plugin import LIBRARY_FOLDER, library_path

SOURCE = Path(__file__).parents[2] / "examples" / "cpp"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_the_example_serves_a_bundle(bundle, tmp_path):
    packages = Path(tvm_ffi.__file__).parent
    configure = ["cmake", "-S", SOURCE, "-B", tmp_path, f"-DTVM_FFI_DIR={packages}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    np.arange(-4, 4, dtype="float32").tofile(tmp_path / "x.bin")
    command = [tmp_path / "serve_bundle", LIBRARY_FOLDER, bundle, tmp_path / "x.bin"]
    environment = {
        f"COLLAGE_LIB_{name.upper()}": str(library_path(name))
        for name in ("onnxruntime", "openvino")
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "checksum 6" in done.stdout
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'onnxruntime" in done.stderr

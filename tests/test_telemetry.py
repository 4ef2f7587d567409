"""Nothing reports home: packages that would are stood in for by ones that leave a trace."""

import os
import subprocess
import sys

import pytest

from tests.pipeline.test_compile import small_model

TRACE = "import os\nopen(os.environ['TRACE'], 'a').write(__name__ + '\\n')\n"


@pytest.fixture
def traced(tmp_path):
    """Run a command where importing OpenVINO's telemetry is written to a file; return the file."""
    package = tmp_path / "packages" / "openvino_telemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TRACE)
    trace = tmp_path / "trace"

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "TRACE": str(trace)}
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return trace

    return run


def test_importing_openvino_as_its_users_do_reports(traced):
    assert traced("-c", "import openvino").exists()


def test_a_compile_with_openvino_reports_nothing(traced, tmp_path):
    """Candidates, kernels, and the baseline of the gate."""
    model = small_model(tmp_path / "model.onnx")
    trace = traced(
        "-m", "collage", "compile", str(model), "-o", str(tmp_path / "bundle"), "--backends", "openvino",
        "--cache-dir", str(tmp_path / "store"), "--effort", "quick", "--verify", "0.2s",
    )  # fmt: skip
    assert not trace.exists()

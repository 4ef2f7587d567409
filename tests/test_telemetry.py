"""Nothing reports home: what is told to whom; `tests/quiet` looks at what comes of it.

OpenVINO's telemetry is stood in for by a package that leaves a trace.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collage.telemetry import TELEMETRY_OFF
from tests.helm import charts
from tests.support.models import small_model

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
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
        "--cache-dir", str(tmp_path / "store"), "--effort", "quick", "--verify", "0.2s", "--allow-slower",
    )  # fmt: skip
    assert not trace.exists()


CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
"""Without what tells Prefect and MLflow that they are in a test or in CI, where they report nothing."""


@pytest.mark.parametrize(
    ("module", "is_on"),
    [
        ("prefect._internal.analytics.enabled", "m.is_telemetry_enabled()"),
        ("mlflow.telemetry.utils", "not m.is_telemetry_disabled()"),
        ("os", "m.environ['ORT_DISABLE_TELEMETRY'] != '1'"),
    ],
    ids=["prefect", "mlflow", "onnxruntime"],
)
def test_importing_collage_turns_telemetry_off(module, is_on):
    pytest.importorskip(module.partition(".")[0])
    code = f"import collage, sys, {module}; m = sys.modules[{module!r}]; sys.exit({is_on})"
    variables = {
        "ORT_DISABLE_TELEMETRY": "0",
        "DO_NOT_TRACK": "0",
        "MLFLOW_DISABLE_TELEMETRY": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**CLEAN, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_images_say_the_same_as_the_package():
    variables = dict(re.findall(r"^    ([A-Z_]+)=(\S+)", (ROOT / "Dockerfile").read_text(), re.M))
    assert variables.items() >= TELEMETRY_OFF.items()


@pytest.mark.parametrize("values", [charts.ALL, charts.ENOUGH], ids=["all", "enough"])
def test_every_container_of_the_chart_says_the_same(values):
    containers = [
        container
        for _, pod in charts.pods(charts.render(values))
        for container in (*pod["containers"], *pod.get("initContainers", ()))
    ]
    assert len(containers) >= 3
    for container in containers:
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables.items() >= TELEMETRY_OFF.items(), container["name"]

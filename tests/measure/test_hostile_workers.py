"""A worker runs what models bring: what it takes, says, inherits and leaves behind has limits."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from collage.cost import Cost
from collage.measure.answers import AnswerReader, BadAnswerError, pack_answer, unpack_answer
from collage.measure.call_overhead import DispatchOverhead
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import (
    Built,
    KernelRefused,
    MeasurementOutcome,
    Ready,
    Trial,
    TuningEnded,
)
from collage.runtime.child_environment import PASSED, child_environment
from collage.runtime.process_group import run_compiler
from tests.measure.fakes import LIES
from tests.support.measurers import HOSTILE, make_measurer

TRAP = Path("/tmp/collage-trap-of-a-worker")


@pytest.fixture
def measurer(tmp_path):
    measurer = make_measurer(tmp_path, timeout_s=30.0)
    yield measurer
    measurer.close()


@pytest.mark.parametrize("fault", ["sharing", "filing", "littering", "large_file", "talkative"])
def test_the_resources_of_a_worker_are_limited(measurer, fault):
    cost, after = measurer.measure(
        [MeasurementRequest("f", 1, fault), MeasurementRequest("f", 2, "good")]
    )
    assert HOSTILE[fault] in cost.reason
    assert after.is_valid


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_none_costs_its_candidate_alone(measurer, lie):
    cost, after = measurer.measure(
        [MeasurementRequest("f", 1, "lying", lie), MeasurementRequest("f", 2, "good")]
    )
    assert cost.reason.startswith(HOSTILE["lying"])
    assert after.is_valid
    assert not TRAP.exists()


def pids(folder: Path) -> list[int]:
    """Of a compiler and of what it started, once both run."""
    file, deadline = folder / "reference" / "compilers", time.monotonic() + 60
    while not file.exists() or len(file.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(pid) for pid in file.read_text().split()]


def wait_for_end(processes: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(runs, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("fault", ["compiling", "compiling_and_crashing"])
def test_the_compilers_of_a_worker_end_with_it(tmp_path, fault):
    measurer = make_measurer(tmp_path)
    [cost] = measurer.measure([MeasurementRequest("f", 1, fault)])
    assert HOSTILE[fault] in cost.reason
    wait_for_end(pids(tmp_path))
    measurer.close()


PARENT = """
import sys
from pathlib import Path
from tests.support.measurers import make_measurer
from collage.measure.measurement_request import MeasurementRequest
make_measurer(Path(sys.argv[1]), timeout_s=600.0).measure([MeasurementRequest("f", 1, "compiling")])
"""


def test_the_compilers_of_a_worker_end_with_its_parent(tmp_path):
    (tmp_path / "reference").mkdir()
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)]) as parent:
        compilers = pids(tmp_path)
        parent.send_signal(signal.SIGKILL)
    wait_for_end(compilers)


def test_a_worker_has_no_secrets_and_a_folder_of_its_own(measurer, tmp_path, monkeypatch):
    secrets = ("AWS_SECRET_ACCESS_KEY", "PREFECT_API_KEY", "NVIDIA_API_KEY", "COLLAGE_STORE",
               "COLLAGE_RECEIVER__SECRET", "HTTPS_PROXY", "GITHUB_TOKEN")  # fmt: skip
    for name in (*secrets, "OMP_DISPLAY_ENV", "MY_LICENCE"):
        monkeypatch.setenv(name, "hunter22")
    monkeypatch.setenv(PASSED, "MY_LICENCE")
    before = set(os.listdir(tempfile.gettempdir()))
    [cost] = measurer.measure([MeasurementRequest("f", 1, "telling")])
    measurer.close()
    assert cost.is_valid
    names = set((tmp_path / "reference" / "environment").read_text().split())
    assert not names & set(secrets)
    assert {"PATH", "HOME", "PYTHONPATH", "OMP_DISPLAY_ENV", "MY_LICENCE", "TMPDIR"} <= names
    files = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in files if name.startswith("collage-worker-")]


@pytest.mark.parametrize(
    ("name", "is_passed"),
    [
        ("PATH", True), ("LC_ALL", True), ("CUDA_VISIBLE_DEVICES", True), ("COLLAGE_LIB_ONEDNN", True),
        ("COLLAGE_IMPORT_MEMORY", True), ("TVM_NUM_THREADS", True), ("AWS_REGION", False),
        ("CUDA_REGISTRY_PASSWORD", False), ("MLFLOW_TRACKING_TOKEN", False), ("PREFECT_API_URL", False),
        ("OV_PRIVATE_KEY", False), ("KUBERNETES_SERVICE_HOST", False),
    ],
)  # fmt: skip
def test_an_environment_is_passed_on_by_name(name, is_passed):
    assert (name in child_environment({name: "x"})) == is_passed


ANSWERS = [
    Ready(), Ready(DispatchOverhead(1e-6, 2e-6)), KernelRefused("no"), Built(), TuningEnded("all"),
    MeasurementOutcome(Cost(1e-3, 9e-4, math.inf, (1e-3, 2e-3), "", 0.5, 0.01), drifted=True),
    MeasurementOutcome(Cost.invalid("it is wrong"), durable=False), Trial("[1]", math.inf, 0.1,
    "bad", lost=True),
]  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_arrives_as_it_was_sent(answer):
    data = pack_answer(answer)
    reader = AnswerReader()
    assert reader.feed(data[:5]) == []
    assert repr(reader.feed(data[5:] + data)) == repr([answer, answer])  # NaN differs from itself


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_field_of_another_kind_is_no_answer(answer):
    import json

    document = json.loads(pack_answer(answer)[8:])
    for name in document:
        for value in ([], {"a": 1}, "x" * 9_000_000, -1.0):
            if value == -1.0 and name in ("answer",):
                continue
            with pytest.raises(BadAnswerError):
                unpack_answer(json.dumps(document | {name: value}).encode())


def test_a_compiler_out_of_time_leaves_nothing_running(tmp_path):
    code = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(1000)"
    (tmp_path / "reference").mkdir()
    shell = f"{sys.executable} -c '{code}' > {tmp_path}/reference/compilers; true"
    with pytest.raises(subprocess.TimeoutExpired):
        run_compiler(["sh", "-c", shell], timeout_s=2.0, environment=child_environment())
    wait_for_end(pids(tmp_path))

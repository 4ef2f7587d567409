"""What NVML says is in the environment of every cost, and changes it (on the simulated GPU)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collage.backends.nvidia.libraries import driver_reason
from tests import simulated_gpu

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json
from collage.measure.cuda_device import CudaDevice
from collage.measure.environment import this_environment
from collage.runtime.target import Target
found = this_environment(1, Target.CUDA)
print(json.dumps([found.driver, found.digest, CudaDevice().clocks().throttled]))
"""
USUAL = "simulated GPU sm_90 driver 580.1, default clocks, 700 W"
SAID = {
    "": USUAL,
    "sm=1410": "simulated GPU sm_90 driver 580.1, sm set to 1410 MHz, 700 W",
    "power=500 persistence=1": "simulated GPU sm_90 driver 580.1, default clocks, 500 W, persistent",
    "mode=3": f"{USUAL}, exclusive",
    "mig=1g.10gb": "simulated GPU MIG 1g.10gb sm_90 driver 580.1, default clocks",
    "mig=2g.20gb": "simulated GPU MIG 2g.20gb sm_90 driver 580.1, default clocks",
}
SHARED = {
    ("COLLAGE_GPU_SHARING", "time-sliced"): f"{USUAL}, time-sliced",
    ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps"): f"{USUAL}, mps",
}
pytestmark = pytest.mark.skipif(driver_reason() == "", reason="this machine has a real one")


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory):
    return simulated_gpu.build(tmp_path_factory.mktemp("toolkit"))


def asked(toolkit, folder, **variables):
    environment = simulated_gpu.environment(toolkit, folder / "log") | variables
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_another_policy_profile_or_share_is_another_environment(toolkit, tmp_path):
    identities = {words: asked(toolkit, tmp_path, SIMULATED_NVML=words) for words in SAID}
    assert {words: driver for words, (driver, _, _) in identities.items()} == SAID
    shared = {pair: asked(toolkit, tmp_path, **dict([pair])) for pair in SHARED}
    assert {pair: driver for pair, (driver, _, _) in shared.items()} == SHARED
    digests = [digest for _, digest, _ in (*identities.values(), *shared.values())]
    assert len(set(digests)) == len(digests)
    assert "0001-0203" not in str(identities)  # no card's own name


def test_what_slows_the_clock_is_read_around_batches(toolkit, tmp_path):
    driver, _, throttled = asked(toolkit, tmp_path, SIMULATED_NVML="reasons=36")
    assert (driver, throttled) == (USUAL, ["power cap", "software thermal"])

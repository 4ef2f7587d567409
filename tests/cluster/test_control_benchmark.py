"""The control kernels: the processor's on every node, and one on the GPU by the GPU's own clock."""

import pytest

from collage.cluster.pod.control_benchmark import (
    SAMPLES,
    WRITE_BYTES,
    WRITES,
    control_times,
    device_control_s,
)
from collage.errors import MeasureError
from collage.runtime.target import Target
from tests.measure.fakes import SimulatedDevice


class Written(SimulatedDevice):
    """A device that is as slow as what is written between two events; `factor` is its heat."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.samples = 0

    def timed(self, launch) -> float:
        before = len(self.sweeps)
        launch()
        self.samples += 1
        return self.factor * sum(self.sweeps[before:]) * 1e-12


def test_the_same_work_is_timed_on_the_device_many_times():
    device = Written()
    assert device_control_s(device) == pytest.approx(WRITES * WRITE_BYTES * 1e-12)
    assert device.samples == SAMPLES + 1
    assert set(device.sweeps) == {WRITE_BYTES}


def test_a_device_that_is_throttled_shows():
    assert device_control_s(Written(1.4)) == pytest.approx(1.4 * device_control_s(Written()))


def test_a_node_without_a_gpu_has_the_processors_pace_alone():
    (pace,) = control_times(Target.CPU).items()
    assert pace[0] == "cpu"
    assert 1e-6 < pace[1] < 0.1


def test_a_pace_on_a_gpu_needs_one(monkeypatch):
    monkeypatch.setattr("collage.measure.cuda_device.driver_reason", lambda: "no driver")
    with pytest.raises(MeasureError, match="no GPU to measure on"):
        control_times(Target.CUDA)

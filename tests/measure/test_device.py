"""The cost path of a GPU, on a simulated device with the same interfaces; the real one where there is one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from collage.backends.nvidia.libraries import driver_reason
from collage.cost import Environment, LocalCostTable
from collage.errors import MeasureError
from collage.measure.conditions import MeasuringConditions, WorkerLimits
from collage.measure.cuda_device import CudaDevice
from collage.measure.device import (
    BATCH,
    MAX_DISCARDS,
    DeviceTimer,
    StickyError,
    capability_of,
)
from collage.measure.environment import this_environment
from collage.measure.local import LocalMeasurer
from collage.measure.measurement_request import MeasurementRequest
from collage.runtime.target import Target
from tests.measure.fakes import SimulatedDevice

HOT_S, COLD_S = 1e-5, 2e-5


def kernel() -> tuple[float, float]:
    return HOT_S, COLD_S


def test_samples_are_cold_and_sweeps_are_twice_the_cache():
    device = SimulatedDevice()
    timing = DeviceTimer(device).time(kernel, ())
    assert timing.cost.seconds == pytest.approx(COLD_S)
    assert not timing.drifted
    assert set(device.sweeps) == {2 * device.cache_bytes}


def test_the_boundary_is_added():
    timing = DeviceTimer(SimulatedDevice()).time(kernel, (), dispatch_overhead_s=3e-6)
    assert timing.cost.seconds == pytest.approx(COLD_S + 3e-6)
    assert timing.cost.low <= timing.cost.seconds <= timing.cost.high


def test_throttled_batches_are_discarded():
    timer = DeviceTimer(SimulatedDevice(throttles=True))
    for _ in range(4):
        timing = timer.time(kernel, ())
        assert max(timing.cost.samples) == pytest.approx(COLD_S)
        assert not timing.drifted
    assert timer.discarded > 0


def test_the_cost_of_a_throttled_device_is_marked_as_drifted():
    timer = DeviceTimer(SimulatedDevice(always=True))
    timing = timer.time(kernel, ())
    assert timing.drifted
    assert timing.cost.seconds == pytest.approx(3 * COLD_S)
    assert timer.discarded == MAX_DISCARDS
    assert len(timing.cost.samples) == MAX_DISCARDS * BATCH


def test_noise_is_sampled_longer_than_what_is_steady():
    steady, noisy = (DeviceTimer(SimulatedDevice()) for _ in range(2))
    times = iter(range(10**6))
    calm = steady.time(kernel, ()).cost
    loud = noisy.time(lambda: (0.0, COLD_S * (1 + next(times) % 7)), ()).cost
    assert len(calm.samples) == BATCH
    assert len(loud.samples) > 5 * BATCH


def test_a_hopeless_kernel_is_left_early():
    times = iter(range(10**6))
    cost = DeviceTimer(SimulatedDevice()).time(
        lambda: (0.0, 1.0 + next(times) % 7), (), best_s=0.25
    )
    assert len(cost.cost.samples) == BATCH


def test_a_lost_context_is_raised_and_stays():
    device = SimulatedDevice()

    def bad():
        device.lost = "an illegal memory access (700)"
        return kernel()

    with pytest.raises(StickyError, match="illegal memory access"):
        DeviceTimer(device).time(bad, ())
    with pytest.raises(StickyError):
        device.timed(kernel)


def make_measurer(folder: Path) -> LocalMeasurer:
    (folder / "reference").mkdir(exist_ok=True)
    return LocalMeasurer(
        [SimpleNamespace(name="f", simplified=Path("f.onnx"), graph=range(64), has_samples=False)],
        [
            SimpleNamespace(
                name=name,
                identity=name,
                conflicts=frozenset(),
            )
            for name in ("good", "sticky")
        ],
        LocalCostTable(folder),
        MeasuringConditions(
            Environment("cpu", "features", 2, 1, SimulatedDevice.identity.text, "test"), Target.CUDA
        ),
        reference_dir=folder / "reference",
        limits=WorkerLimits(timeout_s=20.0),
        loader="tests.measure.fakes:FakeGpuKernelBuilder",
        digest=lambda function, nodes: str(nodes),
    )


def test_a_sticky_error_kills_the_worker_and_not_the_run(tmp_path):
    """The candidate is invalid with the device's words; those after it are measured by a new worker."""
    measurer = make_measurer(tmp_path)
    batch = [
        MeasurementRequest("f", 1, "good"),
        MeasurementRequest("f", 2, "sticky"),
        MeasurementRequest("f", 4, "good"),
    ]
    costs = measurer.measure(batch)
    measurer.close()
    assert [cost.is_valid for cost in costs] == [True, False, True]
    assert costs[0].seconds == pytest.approx(COLD_S)
    assert "crashed: exit code 1" in costs[1].reason
    assert "illegal memory access (700)" in costs[1].reason
    assert (
        LocalCostTable(tmp_path, measurer.key.environment).get(measurer.key.launch).seconds == 5e-6
    )
    again = make_measurer(tmp_path)
    assert [cost.reason for cost in again.measure(batch)] == [cost.reason for cost in costs]
    assert again.measured == 0
    again.close()


def test_the_environment_of_a_cpu_is_what_it_was():
    """Costs that were measured before there were devices keep their keys."""
    environment = this_environment(1)
    assert (environment.driver, environment.protocol) == ("", "cold-3")


@pytest.mark.skipif(driver_reason() == "", reason="this machine has a GPU")
def test_without_a_gpu_measuring_says_why():
    with pytest.raises(MeasureError, match="no GPU to measure on: no driver"):
        this_environment(1, Target.CUDA)


@pytest.mark.gpu
@pytest.mark.skipif(driver_reason() != "", reason="no GPU")
class TestCudaDevice:
    """The real device against what the simulated one promises."""

    def test_events_measure_a_sweep(self):
        device = CudaDevice()
        small = min(device.timed(lambda: device.sweep(1 << 20)) for _ in range(20))
        large = min(device.timed(lambda: device.sweep(1 << 30)) for _ in range(20))
        assert 0 < small < large < 0.1

    def test_identity_cache_and_clocks(self):
        device = CudaDevice()
        assert device.cache_bytes >= 1 << 20
        assert int(device.identity.compute_capability) >= 70
        assert device.identity.text in this_environment(1, Target.CUDA).driver
        assert device.clocks().sm_mhz >= 0

    def test_a_kernel_is_timed(self):
        device = CudaDevice()
        timing = DeviceTimer(device).time(device.sweep, (1 << 26,))
        assert 1e-6 < timing.cost.seconds < 1e-2


def test_an_environment_says_what_to_generate_code_for():
    assert capability_of(SimulatedDevice.identity.text) == "90"
    assert capability_of("") == ""

"""Control benchmark of a node: the times of kernels with fixed work, as a measure of its speed now.

One control kernel runs on the processor of every node: a matrix product too small for threads. Nodes with a
GPU run a second one there: writes to a buffer that fits the second-level cache, timed between two events of
the stream. It follows the GPU's clock, which temperature and power limits change, and needs no compiler and
no kernel library. The processor matters there too: it launches kernels and runs regions on the host.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

from collage.measure.cuda_device import CudaDevice
from collage.measure.device import Device
from collage.measure.timing import Control
from collage.runtime.target import Target

SAMPLES = 25
PAUSE_S = 4e-3
CONTROL_SIZE = 64
WRITE_BYTES = 16 << 20
WRITES = 8
"""Consecutive writes of one sample: about 10 us, far above the resolution of an event."""


def control_times(device: Target) -> Mapping[str, float]:
    """Return the time of each control kernel on this node, in seconds, by device; takes 0.2 s.

    Raises:
        MeasureError: the node has no such device.
    """
    times_s = {"cpu": processor_control_s()}
    if device.is_gpu:
        times_s[device] = device_control_s(CudaDevice())
    return times_s


def processor_control_s() -> float:
    """Return the time of the control kernel on one core, in seconds."""
    return _median_s(Control(CONTROL_SIZE).seconds)


def device_control_s(device: Device) -> float:
    """Return the time of the control kernel on a device by its own clock, in seconds."""

    def write() -> None:
        for _ in range(WRITES):
            device.sweep(WRITE_BYTES)

    write()  # allocates the buffer, and wakes the device
    device.timed(write)
    return _median_s(lambda: device.timed(write))


def _median_s(sample: Callable[[], float]) -> float:
    samples_s = []
    for _ in range(SAMPLES):
        samples_s.append(sample())
        time.sleep(PAUSE_S)
    return median(samples_s)

"""The pace of a node: what kernels with fixed work take there now.

One runs on the processor of every node, a product that is too small for threads. Where kernels are timed on
a GPU, one runs there as well: writes to a buffer that fits its second-level cache, timed between two events
of the stream, so that it follows the clock that heat and power move and needs no compiler and no library
of kernels. The processor counts there too: it launches every kernel and runs the regions that stay on it.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

from collage.measure.device import Device
from collage.measure.timing import Control
from collage.options import DeviceName

SAMPLES = 25
PAUSE_S = 4e-3
CONTROL_SIZE = 64
WRITE_BYTES = 16 << 20
WRITES = 8
"""In a row: some ten microseconds, far above what an event resolves."""


def node_pace(device: DeviceName) -> Mapping[str, float]:
    """Return the seconds of each control kernel on this node, by where it runs; takes 0.2 s.

    Raises:
        MeasureError: there is no such device here.
    """
    paces = {"cpu": processor_pace_s()}
    if device != "cpu":
        from collage.measure.cuda_device import CudaDevice

        paces[device] = device_pace_s(CudaDevice())
    return paces


def processor_pace_s() -> float:
    """Return what the control kernel takes on one core."""
    return _median_s(Control(CONTROL_SIZE).seconds)


def device_pace_s(device: Device) -> float:
    """Return what the control kernel takes on a device, by the device's own clock."""

    def write() -> None:
        for _ in range(WRITES):
            device.sweep(WRITE_BYTES)

    write()  # allocates the buffer, and wakes the device
    device.timed(write)
    return _median_s(lambda: device.timed(write))


def _median_s(sample: Callable[[], float]) -> float:
    found = []
    for _ in range(SAMPLES):
        found.append(sample())
        time.sleep(PAUSE_S)
    return median(found)

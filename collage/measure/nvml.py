"""Metadata of a GPU from its driver through NVML, as in nvidia-smi: model, clocks, sharing.

No field identifies a single card: machines of one kind have equal metadata, so they share costs. On a slice
of a card (MIG) the metadata has the slice's profile. Clocks are a policy (application clocks, power limit,
persistence); the current clock is read around every batch of samples instead. Time-slicing is invisible to
a process, so its operator sets `COLLAGE_GPU_SHARING`; MPS is visible in the environment.
"""

import ctypes
import os
from collections.abc import Callable
from typing import NamedTuple

SM, MEMORY = 1, 2
"""nvmlClockType_t."""

REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake",
}  # fmt: skip
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons for a slower kernel; idle is none of them."""

EXCLUSIVE = 3
"""nvmlComputeMode_t: one process at a time."""
TEXT_BYTES = 96
SHARING = "COLLAGE_GPU_SHARING"
MPS_PIPE, MPS_SHARE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class DeviceMetadata(NamedTuple):
    """Properties with an effect on costs, beside the compute capability."""

    name: str
    driver: str
    mig: str
    clocks: str
    sharing: str


class Nvml:
    """The functions of NVML for timing, for one device."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def open(cls, bus: bytes) -> "Nvml | None":
        """Open NVML for the device on a PCI bus; None without NVML or without such a device."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:  # no driver
            return None
        handle = ctypes.c_void_p()
        if library.nvmlInit_v2():
            return None
        if library.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)):
            return None
        return cls(library, handle)

    def clock(self) -> tuple[int, tuple[str, ...]]:
        """Read the clock in MHz, and the reasons for a lower clock than possible."""
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        self._library.nvmlDeviceGetClockInfo(self._handle, SM, ctypes.byref(clock))
        self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle, ctypes.byref(reasons))
        return clock.value, tuple(text for bit, text in REASONS.items() if reasons.value & bit)

    def metadata(self, uuid: bytes) -> DeviceMetadata:
        """Return the device's metadata.

        Args:
            uuid: CUDA's UUID of the device (16 bytes), different for each slice of a card.
        """
        return DeviceMetadata(
            self._name(self._handle),
            self._text(lambda text: self._library.nvmlSystemGetDriverVersion(text, TEXT_BYTES)),
            self._profile(uuid),
            self._clocks(),
            sharing=self._sharing(),
        )

    def _profile(self, uuid: bytes) -> str:
        """Return the MIG profile, e.g. "1g.10gb"; "on" if it is unknown, "" without MIG."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        failed = self._library.nvmlDeviceGetMigMode(
            self._handle, ctypes.byref(current), ctypes.byref(pending)
        )
        if failed or current.value != 1:
            return ""
        slices = self._slices()
        own = [handle for handle in slices if self._uuid(handle) == uuid.hex()]
        chosen = own or (slices if len(slices) == 1 else [])
        return self._name(chosen[0]).partition(" MIG ")[2] or "on" if chosen else "on"

    def _slices(self) -> list[ctypes.c_void_p]:
        handles = []
        for place in range(self._number("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = ctypes.c_void_p()
            if not self._library.nvmlDeviceGetMigDeviceHandleByIndex(
                self._handle, ctypes.c_uint(place), ctypes.byref(handle)
            ):
                handles.append(handle)
        return handles

    def _clocks(self) -> str:
        """Return the clock policy in words."""
        parts = []
        for kind, name in ((SM, "sm"), (MEMORY, "memory")):
            configured = self._number("nvmlDeviceGetApplicationsClock", kind)
            default = self._number("nvmlDeviceGetDefaultApplicationsClock", kind)
            if configured is not None and configured != default:
                parts.append(f"{name} set to {configured} MHz")
        parts = parts or ["default clocks"]
        if limit := self._number("nvmlDeviceGetEnforcedPowerLimit"):
            parts.append(f"{limit / 1000:.0f} W")
        if self._number("nvmlDeviceGetPersistenceMode"):
            parts.append("persistent")
        return ", ".join(parts)

    def _sharing(self) -> str:
        if said := os.environ.get(SHARING, ""):
            return said
        if MPS_PIPE in os.environ:
            share = os.environ.get(MPS_SHARE, "")
            return f"mps {share} %" if share else "mps"
        exclusive = self._number("nvmlDeviceGetComputeMode") == EXCLUSIVE
        return "exclusive" if exclusive else ""

    def _number(self, name: str, *arguments: int) -> int | None:
        """Query a number; None if the device does not report it."""
        function = getattr(self._library, name, None)
        value = ctypes.c_uint()
        parameters = [ctypes.c_uint(argument) for argument in arguments]
        if function is None or function(self._handle, *parameters, ctypes.byref(value)):
            return None
        return value.value

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        """Return a device's UUID in hex, without the prefix of its kind."""
        text = self._text(lambda text: self._library.nvmlDeviceGetUUID(handle, text, TEXT_BYTES))
        return text.partition("-")[2].replace("-", "")

    def _name(self, handle: ctypes.c_void_p) -> str:
        return self._text(lambda text: self._library.nvmlDeviceGetName(handle, text, TEXT_BYTES))

    def _text(self, read: Callable[[ctypes.Array[ctypes.c_char]], int]) -> str:
        text = ctypes.create_string_buffer(TEXT_BYTES)
        return text.value.decode() if read(text) == 0 else "unknown"

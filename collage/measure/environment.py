"""The environment of costs on this machine."""

import hashlib
from functools import cache
from pathlib import Path

from collage.cost.cost import Environment
from collage.options import physical_cores
from collage.runtime.target import Target

FALLBACK_CACHE_BYTES = 32 << 20


def this_environment(threads: int, device: Target = Target.CPU) -> Environment:
    """Describe this machine with kernels on `threads` threads, or on its GPU.

    Raises:
        MeasureError: there is no such device here.
    """
    fields = _cpu_fields()
    features = " ".join(sorted(fields.get("flags", fields.get("Features", "")).split()))
    identity = "/".join(
        fields.get(name, "?") for name in ("vendor_id", "cpu family", "model", "stepping")
    )
    return Environment(
        cpu=f"{fields.get('model name', 'unknown')} ({identity})",
        cpu_features=hashlib.sha256(features.encode()).hexdigest()[:16],
        cores=physical_cores(),
        threads=threads,
        driver=_gpu() if device.is_gpu else "",
        protocol=device.measurement_protocol,
    )


@cache
def _gpu() -> str:
    """What the GPU is, one line."""
    from collage.measure.cuda_device import CudaDevice

    return CudaDevice().identity.text


@cache
def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first core; 32 MiB where the kernel does not say."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        sizes.append(int(digits) * unit if digits.isdigit() else 0)
    return max(sizes) or FALLBACK_CACHE_BYTES


@cache
def _cpu_fields() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return fields
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields

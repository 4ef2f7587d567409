"""Instruction sets of this processor, from /proc/cpuinfo."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = ("amx_bf16", "avx512_bf16")
"""Either makes products of bfloat16 faster than those of float32."""


def cpu_flags(source: Path | None = None) -> set[str]:
    """Return the instruction-set flags of the first processor; an empty set if there are none."""
    try:
        lines = (source or CPUINFO).read_text().splitlines()
    except OSError:  # not Linux
        return set()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return set(value.split())
    return set()


def bf16_reason() -> str:
    """Return the reason against bfloat16 products on this processor, or ""."""
    if cpu_flags().intersection(BF16_FLAGS):
        return ""
    return f"this processor has neither {' nor '.join(BF16_FLAGS)}"

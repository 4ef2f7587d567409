"""Is the executable right, and not slower than any single toolchain?"""

from collage.verify.latency import (
    Contender,
    Latency,
    compare_latency,
    profile_kernels,
    ratio,
    run_once,
)
from collage.verify.numerics import OutputCheck, compare_outputs

__all__ = [
    "Contender",
    "Latency",
    "OutputCheck",
    "compare_latency",
    "compare_outputs",
    "profile_kernels",
    "ratio",
    "run_once",
]

"""Verification: accuracy and speed of executables against the original frameworks."""

from collage.verify.benchmark_target import BenchmarkTarget, KernelProfile
from collage.verify.interleaved_benchmark import (
    InterleavedBenchmark,
    Latency,
    compare_latency,
    profile_kernels,
    ratio,
)
from collage.verify.numerics import OutputCheck, compare_outputs

__all__ = [
    "BenchmarkTarget",
    "InterleavedBenchmark",
    "KernelProfile",
    "Latency",
    "OutputCheck",
    "compare_latency",
    "compare_outputs",
    "profile_kernels",
    "ratio",
]

"""Latency of a loaded bundle for given shapes, beside its fallback's: which shape to compile next."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.errors import InputError
from collage.runtime.dispatch import DispatchCounts
from collage.runtime.loader import LoadedBundle

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ShapeLatency:
    """Latency of calls with inputs of certain shapes.

    Attributes:
        shapes: shapes of the inputs, by name.
        way: "exact", "padded" or "fallback".
        seconds: median of one call, in seconds.
        fallback_seconds: the same of the original model, interleaved; None without a fallback.
    """

    shapes: Shapes
    way: str
    seconds: float
    fallback_seconds: float | None


def benchmark_shapes(
    bundle: LoadedBundle, shape_sets: Sequence[Shapes], seconds: float
) -> list[ShapeLatency]:
    """Time calls of the bundle's only entry; values are those of its golden inputs, repeated or cut.

    Args:
        bundle: a bundle with golden data.
        shape_sets: shapes of inputs; an input that is not named keeps its golden shape.
        seconds: time of each set, in seconds.

    Raises:
        InputError: an input does not exist, or no way takes the shapes.
        BundleError: the bundle has no golden data, or several entries.
    """
    golden = bundle.golden(bundle.signatures[0].function)[0] if bundle.signatures else {}
    latencies = []
    for shapes in shape_sets:
        if unknown := sorted(set(shapes) - set(golden)):
            raise InputError(
                f"unknown input {unknown[0]!r}; there is {', '.join(golden) or 'no golden data'}"
            )
        feed = {
            name: np.resize(array, shapes.get(name, array.shape)) for name, array in golden.items()
        }
        latencies.append(_benchmark(bundle, feed, seconds))
    return latencies


def _benchmark(
    bundle: LoadedBundle, feed: Mapping[str, np.ndarray], seconds: float
) -> ShapeLatency:
    before = bundle.dispatch_counts()
    bundle.run(feed)
    way = _way(before, bundle.dispatch_counts())
    calls: list[Callable[[], object]] = [lambda: bundle.run(feed)]
    if bundle.fallback() is not None:
        bundle.run_fallback(feed)
        calls.append(lambda: bundle.run_fallback(feed))
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while not samples[0] or time.perf_counter() < end:
        for call, taken in zip(calls, samples, strict=True):
            start = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - start) * 1e-9)
    medians = [statistics.median(taken) for taken in samples]
    shapes = {name: array.shape for name, array in feed.items()}
    return ShapeLatency(shapes, way, medians[0], medians[1] if len(medians) > 1 else None)


def _way(before: DispatchCounts, after: DispatchCounts) -> str:
    if after.fallback > before.fallback:
        return "fallback"
    return "padded" if sum(after.padded.values()) > sum(before.padded.values()) else "exact"

"""Size of the cache flush before a timed call: the caches' content after one run of the model."""

from dataclasses import dataclass

from collage.measure.environment import last_level_cache_bytes

MIN_FLUSH_BYTES = 4 << 20
SIMILAR = 4
"""Largest ratio of two sizes with exchangeable costs (effect: `benchmarks.family`)."""


@dataclass(frozen=True, slots=True)
class CacheFlush:
    """A size in bytes, and the `similar` sizes. Their costs are used where this size has none.

    Sizes come in few classes. Models of one family (another depth, another input) still fall into
    different classes. The cost of a common kernel in one class is a good estimate in the next, and
    in-context costs correct it: plans are as fast as after measuring all kernels again.
    """

    size_bytes: int
    similar: tuple[int, ...] = ()

    @classmethod
    def of(cls, footprint_bytes: int, cache_bytes: int | None = None) -> "CacheFlush":
        """Return the flush for a model: a power of two, at most one and a half caches.

        Args:
            footprint_bytes: weights and activations of one run of the model, in bytes.
            cache_bytes: last-level cache of the measuring machine, in bytes; None is this machine.

        >>> sweep = CacheFlush.of(20 << 20, cache_bytes=32 << 20)
        >>> sweep.size_bytes >> 20, [size >> 20 for size in sweep.similar]
        (32, [48, 16, 8])
        """
        largest = max(MIN_FLUSH_BYTES, (cache_bytes or last_level_cache_bytes()) * 3 // 2)
        sizes, power = [largest], MIN_FLUSH_BYTES
        while power < largest:
            sizes.append(power)
            power *= 2
        size = min(
            (candidate for candidate in sizes if candidate >= footprint_bytes), default=largest
        )
        ratios = {
            candidate: max(candidate / size, size / candidate)
            for candidate in sizes
            if candidate != size
        }
        similar = [candidate for candidate, ratio in ratios.items() if ratio <= SIMILAR]
        return cls(size, tuple(sorted(similar, key=ratios.__getitem__)))

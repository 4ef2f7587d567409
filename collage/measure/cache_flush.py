"""How much is swept out of the caches before a kernel is timed: as much as one run of its model would."""

from dataclasses import dataclass

from collage.measure.environment import last_level_cache_bytes

MIN_BYTES = 4 << 20
SIMILAR = 4
"""Sizes that differ by this factor at most stand in for each other (`benchmarks.family` says what of it)."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A size in bytes; `similar` are the sizes whose costs stand in where this one's is not known.

    Sizes come in few classes, and models of one family (another depth, another input) still fall into
    different ones. What their common kernels cost in one is a good estimate in the next, and refinement
    corrects it inside executables: plans come out as fast as after measuring all of them again.
    """

    size_bytes: int
    similar: tuple[int, ...] = ()

    @classmethod
    def of(cls, footprint_bytes: int, cache_bytes: int | None = None) -> "Sweep":
        """Return the sweep for a model: a power of two, at most one and a half caches.

        Args:
            footprint_bytes: what one run of the model touches, weights and activations.
            cache_bytes: last-level cache of the machine that measures; None is this one.

        >>> sweep = Sweep.of(20 << 20, cache_bytes=32 << 20)
        >>> sweep.size_bytes >> 20, [size >> 20 for size in sweep.similar]
        (32, [48, 16, 8])
        """
        largest = max(MIN_BYTES, (cache_bytes or last_level_cache_bytes()) * 3 // 2)
        sizes, power = [largest], MIN_BYTES
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

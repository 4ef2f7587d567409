"""Progress of a compile: the interface between the pipeline and its displays.

The pipeline opens stages and counts; `report.terminal` shows them on a console, `flows.progress` in
Prefect. This module needs no rich.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from collage.report.formatting import printable


class Stage:
    """Progress of one stage; `total` may be set, or changed, at any time."""

    def __init__(self, name: str, total: int | None, clock: Callable[[], float]) -> None:
        self.name, self.done, self.cached, self.invalid = name, 0, 0, 0
        self._total, self._clock = total, clock
        self.start_s = clock()
        self.changed: Callable[[], None] = lambda: None

    @property
    def total(self) -> int | None:
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total
        self.changed()

    def advance(self, n: int = 1, cached: int = 0, invalid: int = 0) -> None:
        """Count finished units of work.

        Args:
            n: number of finished units, default 1.
            cached: number of them from the store.
            invalid: number of them without a valid result.
        """
        self.done += n
        self.cached += cached
        self.invalid += invalid
        self.changed()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self.start_s

    @property
    def remaining_s(self) -> float | None:
        """Remaining time in seconds at the rate of uncached units; None if unknown."""
        uncached = self.done - self.cached
        if self._total is None or uncached <= 0:
            return None
        return self.elapsed_s / uncached * max(0, self._total - self.done)

    def counts(self) -> str:
        """Format the counts, e.g. `12/40  3 cached  1 invalid`."""
        parts = []
        if self._total is not None:
            parts.append(f"{self.done}/{self._total}")
        elif self.done:
            parts.append(str(self.done))
        if self.cached:
            parts.append(f"{self.cached} cached")
        if self.invalid:
            parts.append(f"{self.invalid} invalid")
        return "  ".join(parts)


class Progress(Protocol):
    """A display of stages."""

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Stage]:
        """Open one stage for the duration of a `with` block."""
        ...


class SilentProgress:
    """A display without output.

    Example:
        >>> with SilentProgress().stage("measure", total=2) as stage:
        ...     stage.advance(cached=1)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Count one stage."""
        yield Stage(printable(name), total, self._clock)

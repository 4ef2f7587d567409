"""What is asked of a measurer, and the protocol that local workers and clusters both implement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collage.cost.cost import Cost
from collage.graph.index_set import IndexSet


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One candidate: a region of a function on a backend's variant."""

    function: str
    nodes: IndexSet
    backend: str
    variant: str = ""


OnCost = Callable[[Work, Cost, bool], None]
"""Called for each result as it arrives; the flag tells whether it came from the cost table."""


class Measurer(Protocol):
    """Measures batches; a batch is large enough to keep all its workers busy."""

    def measure(self, batch: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return the cost of each work, in order; never raises for a bad candidate."""
        ...


class SearchMeasurer(Measurer, Protocol):
    """A measurer with a memory: what a search needs.

    Works are counted once each: `measured` now, `cached` known before or equal to another one;
    `invalid` of both are unusable. Fewer works than `batch` leave some of its workers idle. Of the time
    that `measure` took, nothing was built or measured in `waited_s`: it waited for machines.
    """

    measured: int
    cached: int
    invalid: int
    waited_s: float
    batch: int

    def recall(self, works: Sequence[Work], on_cost: OnCost | None = None) -> list[Cost]:
        """Return what is known of each work, in order; unknown where nothing is."""
        ...

    def close(self) -> None:
        """Release what measuring holds."""
        ...

"""Measurement requests, and the protocol of measurers: local workers or a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collage.cost.cost import Cost
from collage.graph.index_set import IndexSet


@dataclass(frozen=True, slots=True, order=True)
class MeasurementRequest:
    """Request for the cost of one candidate: a region of a function on a variant of a backend."""

    function: str
    nodes: IndexSet
    backend: str
    variant: str = ""


OnCost = Callable[[MeasurementRequest, Cost, bool], None]
"""Callback for each result on arrival; the flag tells whether it came from the cost table."""


class Measurer(Protocol):
    """Measures batches of requests."""

    def measure(
        self, batch: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        """Return the cost of each request, in order; a bad candidate has an invalid cost."""
        ...


class SearchMeasurer(Measurer, Protocol):
    """A measurer with a cost table, for the search.

    Attributes:
        measured: requests measured by this object.
        cached: requests with a stored cost, or equal to another request of the batch.
        invalid: requests of both kinds without a usable cost.
        waited_s: time inside `measure` spent waiting for machines, in seconds.
        batch: smallest batch without idle workers.
    """

    measured: int
    cached: int
    invalid: int
    waited_s: float
    batch: int

    def recall(
        self, requests: Sequence[MeasurementRequest], on_cost: OnCost | None = None
    ) -> list[Cost]:
        """Return the stored cost of each request, in order; an unknown cost where none is stored."""
        ...

    def close(self) -> None:
        """End all workers and release other resources."""
        ...

"""Measurement requests, their kernels, and the protocol of measurers: local workers or a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collage.backends.base import Backend, BuildContext, Kernel
from collage.cost.cost import Cost
from collage.errors import BackendError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.rules.composites import read_region_label


@dataclass(frozen=True, slots=True, order=True)
class MeasurementRequest:
    """Request for the cost of one candidate: a region of a function on a variant of a backend.

    Attributes:
        function: name of the function.
        nodes: nodes of the region.
        backend: name of the backend.
        variant: name in `Backend.variants` or `Backend.reduced`.
        label: label of the region's implementation (`rules.composites`), "" for the backend's own choice.
    """

    function: str
    nodes: IndexSet
    backend: str
    variant: str = ""
    label: str = ""

    @property
    def implementation(self) -> str:
        """Variant and label, for readers."""
        return " ".join(filter(None, (self.variant, self.label)))


def compile_request(
    backend: Backend, function: Function, request: MeasurementRequest, context: BuildContext
) -> Kernel:
    """Compile the region of a request.

    Raises:
        BackendError: the backend refuses the region; the message is the reason.
    """
    nodes, variant = request.nodes, request.variant
    if not request.label:
        return backend.compile(function, nodes, context, variant)
    try:
        composites = read_region_label(request.label, nodes)
    except ValueError as error:
        raise BackendError(str(error)) from error
    return backend.compile_labelled(
        function, nodes, context, variant=variant, composites=composites
    )


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

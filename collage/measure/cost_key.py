"""Cost keys of measurement requests: equal on all machines, so that machines share costs."""

from collections.abc import Callable, Iterator, Sequence

from collage.backends.base import Backend
from collage.cost import Cost, CostKey, CostTable, Environment
from collage.cost.cost import cost_key
from collage.frontend.model import Function
from collage.frontend.region import region_digest
from collage.graph.index_set import IndexSet
from collage.measure.cache_flush import CacheFlush
from collage.measure.measurement_request import MeasurementRequest


def launch_key(environment: Environment) -> CostKey:
    """Return the key of the lower bound of a call launched from the host."""
    return cost_key("launch", "virtual machine", environment)


class CostKeys:
    """Cost keys of requests for some functions and backends in one environment."""

    def __init__(
        self,
        functions: Sequence[Function],
        backends: Sequence[Backend],
        environment: Environment,
        sweep: CacheFlush,
        *,
        digest: Callable[[Function, IndexSet], str] = region_digest,
    ) -> None:
        """Hold the parts of the keys.

        Args:
            functions: functions of the requests.
            backends: backends of the requests.
            environment: environment of the measuring machine.
            sweep: cache flush before every timed call.
            digest: function returning the digest of a region's structure.
        """
        self.environment = environment
        self.boundary = cost_key("boundary", "virtual machine", environment)
        """Key of the dispatch overhead."""
        self.launch = launch_key(environment)
        self._functions = {function.name: function for function in functions}
        self._identities = {backend.name: backend.identity for backend in backends}
        self._sweep = sweep
        self._digest = digest

    def __call__(self, work: MeasurementRequest) -> CostKey:
        """Return the cost key of the request."""
        return next(self._keys(work))

    def recall(self, table: CostTable, work: MeasurementRequest) -> Cost | None:
        """Return the stored cost after this cache flush, else after the most similar one, else None.

        Raises:
            StoreError: the table cannot be read.
        """
        return next((cost for key in self._keys(work) if (cost := table.get(key))), None)

    def _keys(self, work: MeasurementRequest) -> Iterator[CostKey]:
        """Yield the key of the request, then its keys after similar cache flushes, nearest first."""
        digest = self._digest(self._functions[work.function], work.nodes)
        kernel = f"{self._identities[work.backend]} {work.variant}"
        if work.label:
            kernel += f" label={work.label}"
        for size in (self._sweep.size_bytes, *self._sweep.similar):
            yield cost_key(digest, f"{kernel} sweep={size}", self.environment)

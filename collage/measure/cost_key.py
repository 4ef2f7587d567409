"""The key of a work's cost: the same wherever it is computed, so that machines share what they measured."""

from collections.abc import Callable, Iterator, Sequence

from collage.backends.base import Backend
from collage.cost import Cost, CostKey, Costs, Environment
from collage.cost.cost import cost_key
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.measure.cache_flush import Sweep
from collage.measure.measurement_request import Work


def region_structure(function: Function, nodes: IndexSet) -> str:
    """Return the digest of a region's structure."""
    from collage.frontend.region import region_digest

    return region_digest(function, nodes)


def launch_key(environment: Environment) -> CostKey:
    """Return the key of the least that a call takes where kernels are launched one by one."""
    return cost_key("launch", "virtual machine", environment)


class WorkKeys:
    """Keys of the works of some functions on some backends in one environment."""

    def __init__(
        self,
        functions: Sequence[Function],
        backends: Sequence[Backend],
        environment: Environment,
        sweep: Sweep,
        digest: Callable[[Function, IndexSet], str] = region_structure,
    ) -> None:
        """Remember what goes into a key.

        Args:
            functions: what works may name.
            backends: what works may name.
            environment: of the machine that measures.
            sweep: before every timed call.
            digest: of a region's structure.
        """
        self.environment = environment
        self.boundary = cost_key("boundary", "virtual machine", environment)
        """Key of what the executable adds to each call."""
        self.launch = launch_key(environment)
        self._functions = {function.name: function for function in functions}
        self._identities = {backend.name: backend.identity for backend in backends}
        self._sweep = sweep
        self._digest = digest

    def __call__(self, work: Work) -> CostKey:
        """Return the key of the work's cost in the table."""
        return next(self._keys(work))

    def recall(self, table: Costs, work: Work) -> Cost | None:
        """Return the cost that the table knows, else that after the sweep most like this one, or None.

        Raises:
            StoreError: the table cannot be read.
        """
        return next((cost for key in self._keys(work) if (cost := table.get(key))), None)

    def _keys(self, work: Work) -> Iterator[CostKey]:
        """Yield the work's key, then its keys after other sweeps, the most similar first."""
        digest = self._digest(self._functions[work.function], work.nodes)
        kernel = f"{self._identities[work.backend]} {work.variant}"
        for size in (self._sweep.size_bytes, *self._sweep.similar):
            yield cost_key(digest, f"{kernel} sweep={size}", self.environment)

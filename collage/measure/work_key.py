"""The key of a work's cost: the same wherever it is computed, so that machines share what they measured."""

from collections.abc import Callable, Sequence

from collage.backends.base import Backend
from collage.cost import CostKey, Environment
from collage.cost.cost import cost_key
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.measure.work import Work


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
        sweep: int,
        digest: Callable[[Function, IndexSet], str] = region_structure,
    ) -> None:
        """Remember what goes into a key.

        Args:
            functions: what works may name.
            backends: what works may name.
            environment: of the machine that measures.
            sweep: bytes swept before every timed call (`timing.sweep_bytes`).
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
        digest = self._digest(self._functions[work.function], work.nodes)
        identity = f"{self._identities[work.backend]} {work.variant} sweep={self._sweep}"
        return cost_key(digest, identity, self.environment)

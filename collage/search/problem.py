"""Search problems and plans as plain data: the search needs no rules, no backends and no TVM.

Seconds are summed as whole femtoseconds. Integer sums do not depend on the order of addition, so
equal plans have equal costs, ties are real ties, and a regret of zero means zero.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from collage.cost.cost import Cost
from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, first

FEMTOSECONDS = 10**15

Costs = Mapping[Hashable, Cost]
"""Costs by option key; an absent key is unknown."""

UNKNOWN = Cost.unknown()


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate of a search problem.

    Attributes:
        nodes: its nodes, a convex set and not empty.
        key: identity of its cost (region digest and backend with variant); equal keys have equal costs.
        backend: name of the toolchain; selects the boundary cost.
        priority: preference among equal costs, lower first; at least 0.
        variant: name of the backend's implementation; each has its own estimates.
        precision: reduced precision ("bf16", "tf32"), "" for the model's own.
        graph_capturable: whether, with a GPU, its kernel may be part of a CUDA graph; default True.
    """

    nodes: IndexSet
    key: Hashable
    backend: str
    priority: int = 0
    variant: str = ""
    precision: str = ""
    graph_capturable: bool = True

    @property
    def reduced(self) -> bool:
        """Tell whether it computes in less than the model's precision."""
        return bool(self.precision)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self.nodes.bit_count()


@dataclass(frozen=True)
class Problem:
    """Cover every node of `graph` by disjoint `options`.

    Attributes:
        graph: the function's dataflow graph.
        options: its candidates; equal ones (same nodes, key and backend) count once.
        dispatch_overhead_s: cost of a call beyond its kernel by backend, in seconds, added to each
            chosen option; default 0 (RFC 0.7 has no such term, upstream defect D10).
        launch_s: shortest call of a plan without CUDA graphs, in seconds: its kernels are launched from the
            host, and a kernel shorter than its launch waits (`collage.search.graph_launches`). Costs are
            those of captured kernels; default 0, no difference.
        conflicts: names, by backend, of the backends that cannot share a process with it, and so no
            plan. Symmetric.
    """

    graph: DataflowGraph
    options: Sequence[Option]
    dispatch_overhead_s: Mapping[str, float] = field(default_factory=dict)
    launch_s: float = 0.0
    conflicts: Mapping[str, Set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.graph)
        for option in self.options:
            if option.nodes <= 0 or option.nodes >> size:
                raise ValueError(f"{option} is empty or has nodes that the graph lacks")
            if option.priority < 0:
                raise ValueError(f"{option}: a priority is at least 0")

    @cached_property
    def ordered(self) -> tuple[Option, ...]:
        """The distinct options by first node, larger first, then priority, backend, key, nodes."""
        unique = {(option.nodes, option.backend, option.key): option for option in self.options}
        return tuple(sorted(unique.values(), key=_order))

    def boundary_fs(self, option: Option) -> int:
        """Boundary cost of the option, in femtoseconds."""
        return femtoseconds(self.dispatch_overhead_s.get(option.backend, 0.0))

    def options_of(self, key: Hashable) -> Sequence[Option]:
        """Return the options with this key, in the order of `ordered`."""
        return self._by_key.get(key, ())

    @cached_property
    def _by_key(self) -> Mapping[Hashable, Sequence[Option]]:
        by_key: dict[Hashable, list[Option]] = {}
        for option in self.ordered:
            by_key.setdefault(option.key, []).append(option)
        return by_key


def _order(option: Option) -> tuple[int, int, int, str, str, int]:
    start = first(option.nodes)
    return start, -option.size, option.priority, option.backend, repr(option.key), option.nodes


@dataclass(frozen=True)
class Plan:
    """Chosen options in an executable order: producers come before their readers."""

    options: tuple[Option, ...]
    predicted_s: float

    @property
    def reduced(self) -> bool:
        """Tell whether a region computes in less than float32."""
        return any(option.reduced for option in self.options)

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends used, sorted."""
        return tuple(sorted({option.backend for option in self.options}))


def femtoseconds(seconds: float) -> int:
    """Round to whole femtoseconds."""
    return round(seconds * FEMTOSECONDS)

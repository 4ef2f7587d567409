"""What the search works on: plain data, so that it needs no rules, no backends and no TVM.

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
"""Cost by option key; an absent key is unknown."""

UNKNOWN = Cost.unknown()


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate as the search sees it.

    Attributes:
        nodes: convex and not empty.
        key: options with equal keys cost the same (region digest and backend with variant).
        backend: the toolchain's name; a plan's boundary cost goes by it.
        priority: lower is preferred where costs are equal; at least 0.
        variant: which of the backend's implementations; estimates are learnt for each.
        precision: what it computes in when that is less than the model says ("bf16", "tf32"), else "".
        captures: on a GPU, it may be part of a CUDA graph.
    """

    nodes: IndexSet
    key: Hashable
    backend: str
    priority: int = 0
    variant: str = ""
    precision: str = ""
    captures: bool = True

    @property
    def reduced(self) -> bool:
        """Tell whether it computes in less than the model says."""
        return bool(self.precision)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self.nodes.bit_count()


@dataclass(frozen=True)
class Problem:
    """Cover every node of `graph` by disjoint `options`.

    `boundary_s` is added to each chosen option of a backend: what a call into it costs beyond the
    kernel (RFC 0.7 has no such term, upstream defect D10). Absent backends add nothing. An option
    that occurs twice (same nodes, key and backend) counts once.

    `launch_s` is the least that a call takes in a plan with an option that does not capture: its kernels
    are launched from the host, and one that is shorter than its launch waits (`search.launches`). Costs are
    those of captured kernels; 0 where all is the same.

    `conflicts` names, for a backend, those that cannot be in one process with it, and so in no plan with it.
    It says so both ways.
    """

    graph: DataflowGraph
    options: Sequence[Option]
    boundary_s: Mapping[str, float] = field(default_factory=dict)
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
        """Femtoseconds that choosing the option adds to its kernel."""
        return femtoseconds(self.boundary_s.get(option.backend, 0.0))

    def options_of(self, key: Hashable) -> Sequence[Option]:
        """Return the options that share `key`, in the fixed order."""
        return self._by_key.get(key, ())

    @cached_property
    def _by_key(self) -> Mapping[Hashable, Sequence[Option]]:
        found: dict[Hashable, list[Option]] = {}
        for option in self.ordered:
            found.setdefault(option.key, []).append(option)
        return found


def _order(option: Option) -> tuple[int, int, int, str, str, int]:
    start = first(option.nodes)
    return start, -option.size, option.priority, option.backend, repr(option.key), option.nodes


@dataclass(frozen=True)
class Plan:
    """Chosen options in an executable order (every input is made before it is read)."""

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

"""State space: all partial covers of a function, and the options between them.

RFC 0.7 and upstream search covered sets and expand only candidates of the first uncovered node, so exactly
one path leads to every cover. That alone is not exact: two options with several exits can each read from the
other, and no order executes both (upstream defect D3). A later option closes such a cycle or not depending on
the partition of the covered set, so the covered set is too small a state.

Here a state is (first uncovered node, covered nodes after it, ordering constraints). An ordering constraint
(p, q) between uncovered nodes p and q means: a chain of chosen options reads from p and feeds q. An option
with both ends is rejected. Adding an option eliminates its nodes from the relation as vertex elimination does
in a graph, so the relation is complete and every path to the end is an acyclic cover. Options never add a
constraint if all their outside inputs precede their first node; with single-exit options the relation is a
function of the covered set. Hence states are few in practice: on intervals between cut points there is one
per position. Where no option crosses a position, exactly one state remains, so the work grows with the number
of pieces and not with their product.

Where backends cannot share a process, a state also contains the conflicting backends of its options, and an
option of an excluded backend is rejected. Without conflicts this costs nothing.

Covered sets are relative to the first uncovered node: integers stay as short as the options. Many
parallel branches with many non-contiguous options can still make states explode. Where more than
`MAX_STATE_WIDTH` states meet at one node, their next option must be contiguous. Where all states
together would exceed `MOST_STATES`, each node keeps the states with the fewest nodes covered ahead,
half of the remaining number each time. Such a space is not `complete`, and the best plan in it may
not be the optimum.

The space depends on no cost: a lazy search builds it once and evaluates it every round in O(steps). Options
need no check for convexity: a non-convex option is a cycle by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, first, indices
from collage.search.problem import Option, Problem

MAX_STATE_WIDTH = 10_000
"""Largest number of states with one first uncovered node for an expansion with every option."""

MOST_STATES = 500_000
"""Largest number of states; more take gigabytes."""

Constraints = tuple[tuple[int, IndexSet], ...]
"""For each uncovered node, ascending: the uncovered nodes to execute after it; absolute indices."""

Step = tuple[int, int]
"""(option number, next state number)."""

Incoming = list[dict[tuple[IndexSet, Constraints, int], list[tuple[int, int]]]]
"""For each first uncovered node and each of its states: the steps to it, as (option, source state)."""


@dataclass(slots=True)
class _RelativeOption:
    """An option relative to its first node.

    Attributes:
        number: index of the option.
        nodes: its nodes.
        gaps: the nodes are not contiguous.
        reads: later nodes that it reads.
        joins: bit of its backend among the conflicting backends, 0 without conflicts.
        excludes: bits of the backends in conflict with its own.
    """

    number: int
    nodes: IndexSet
    gaps: bool
    reads: IndexSet
    joins: int
    excludes: int


@dataclass
class StateSpace:
    """States in topological order: every step leads to a higher number.

    Attributes:
        problem: the search problem.
        options: usable options in the order of `Problem.ordered`.
        steps: steps of each state, in the order of the options.
        starts: first uncovered node of each state (the number of nodes in the final state).
        final: number of the state with all nodes covered; None without a cover.
        complete: every executable cover is a path; False beyond `MAX_STATE_WIDTH` or `MOST_STATES`.
    """

    problem: Problem
    options: Sequence[Option]
    steps: list[list[Step]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    final: int | None = None
    complete: bool = True


def build_state_space(
    problem: Problem, usable: Callable[[Option], bool], most_states: int = MOST_STATES
) -> StateSpace:
    """Enumerate the states reachable with the usable options, at most `most_states`.

    Each node keeps at least one state, however small `most_states` is.
    """
    space = StateSpace(problem, tuple(filter(usable, problem.ordered)))
    _Builder(space, most_states).run()
    return space


class _Builder:
    def __init__(self, space: StateSpace, most_states: int) -> None:
        self.space = space
        self.most_states = most_states
        self.size = len(space.problem.graph)
        self.edges = Edges(space.problem.graph)
        self.options: list[list[_RelativeOption]] = [[] for _ in range(self.size)]
        joins, excludes = _conflicts(space)
        for number, option in enumerate(space.options):
            start = first(option.nodes)
            nodes = option.nodes >> start
            # An option reads later nodes only inside its gaps: contiguous options read none.
            gaps = nodes ^ ((1 << nodes.bit_length()) - 1)
            reads = self.edges.reads(option.nodes) >> start & gaps if gaps else 0
            name = option.backend
            self.options[start].append(
                _RelativeOption(
                    number,
                    nodes,
                    bool(gaps),
                    reads,
                    joins=joins.get(name, 0),
                    excludes=excludes.get(name, 0),
                )
            )

    def run(self) -> None:
        # The steps to a state are complete before the state gets its number.
        incoming: Incoming = [{} for _ in range(self.size + 1)]
        incoming[0][0, (), 0] = []
        space = self.space
        for start in range(self.size + 1):
            self._cut(incoming, start)
            for (covered, constraints, joined), steps in incoming[start].items():
                state = len(space.steps)
                space.steps.append([])
                space.starts.append(start)
                for option, source in steps:
                    space.steps[source].append((option, state))
                if start < self.size:
                    self._expand(incoming, state, covered, constraints, joined=joined)
            incoming[start] = {}
        if space.starts[-1] == self.size:
            space.final = len(space.steps) - 1
        for steps in space.steps:
            steps.sort()

    def _cut(self, incoming: Incoming, start: int) -> None:
        """Keep half of the remaining number of states, and reserve one for each later node.

        With fewer nodes covered ahead more options fit next: with options for single nodes, the state without
        any node covered ahead always exists, so a cut space still has a cover.
        """
        available = self.most_states - len(self.space.steps) - (self.size - start)
        limit = max(1, available // 2)
        if len(incoming[start]) > limit:
            self.space.complete = False
            fewest = sorted(incoming[start], key=lambda state: (state[0].bit_count(), state))
            incoming[start] = {state: incoming[start][state] for state in fewest[:limit]}

    def _expand(
        self,
        incoming: Incoming,
        state: int,
        covered: IndexSet,
        constraints: Constraints,
        *,
        joined: int,
    ) -> None:
        start = self.space.starts[state]
        narrow = len(incoming[start]) > MAX_STATE_WIDTH
        for option in self.options[start]:
            if option.nodes & covered or option.excludes & joined:
                continue
            if narrow and option.gaps:
                self.space.complete = False
                continue
            is_constrained = constraints or option.reads & ~covered
            after = self._constraints(start, covered, constraints, option) if is_constrained else ()
            if after is None:
                continue
            union = option.nodes | covered
            skip = (~union & (union + 1)).bit_length() - 1
            states = incoming[start + skip]
            # The final state is a single one, without conflicts.
            joined_after = joined | option.joins if start + skip < self.size else 0
            steps = states.setdefault((union >> skip, after, joined_after), [])
            steps.append((option.number, state))

    def _constraints(
        self, start: int, covered: IndexSet, constraints: Constraints, option: _RelativeOption
    ) -> Constraints | None:
        """Return the ordering constraints with the option added, None if it closes a cycle."""
        nodes = option.nodes << start
        done = covered << start | ((1 << start) - 1) | nodes
        before = (option.reads << start) & ~done
        after = self.edges.fed(nodes) & ~done
        for earlier, later in constraints:
            if nodes >> earlier & 1:
                if later & nodes:
                    return None
                after |= later
            elif later & nodes:
                before |= 1 << earlier
        if before & after:
            return None
        remaining = {
            earlier: later & ~nodes for earlier, later in constraints if not nodes >> earlier & 1
        }
        if after:
            for earlier in indices(before):
                remaining[earlier] = remaining.get(earlier, 0) | after
        return tuple((earlier, later) for earlier, later in sorted(remaining.items()) if later)


def _conflicts(space: StateSpace) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bit of each backend with conflicts in the space, and the bits of its conflicts."""
    backends = {option.backend for option in space.options}
    conflicts = space.problem.conflicts
    excluded = {backend: backends & conflicts.get(backend, frozenset()) for backend in backends}
    conflicting = sorted(backend for backend in backends if excluded[backend])
    bits = {backend: 1 << place for place, backend in enumerate(conflicting)}
    return bits, {
        backend: sum(bits[neighbour] for neighbour in excluded[backend]) for backend in conflicting
    }


class Edges:
    """Direct neighbours of every node, as lists for iteration in the number of neighbours."""

    def __init__(self, graph: DataflowGraph) -> None:
        producer = graph.producer
        self.before: list[list[int]] = [[] for _ in graph.nodes]
        self.after: list[list[int]] = [[] for _ in graph.nodes]
        for node in graph.nodes:
            for source in sorted({producer[value] for value in node.inputs if value in producer}):
                self.before[node.index].append(source)
                self.after[source].append(node.index)
        self._read_bits = [sum(1 << source for source in before) for before in self.before]
        self._fed_bits = [sum(1 << reader for reader in after) for after in self.after]

    def reads(self, nodes: IndexSet) -> IndexSet:
        """Return the outside producers of the inputs of `nodes`."""
        return self._union(self._read_bits, nodes)

    def fed(self, nodes: IndexSet) -> IndexSet:
        """Return the outside readers of the outputs of `nodes`."""
        return self._union(self._fed_bits, nodes)

    def _union(self, table: list[IndexSet], nodes: IndexSet) -> IndexSet:
        union = 0
        for index in indices(nodes):
            union |= table[index]
        return union & ~nodes

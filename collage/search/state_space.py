"""All partial covers of a function, and the options that lead from one to the next.

RFC 0.7 and upstream search covered sets and expand only candidates that contain the first uncovered
node, so that every cover is reached along exactly one path. That alone is not exact: two options
with several exits can each read from the other, and no order executes both (upstream defect D3).
Whether a later option closes such a cycle depends on how the covered set was partitioned, so the
covered set is too small a state.

Here a state is (first uncovered node, covered nodes after it, detours). A detour (p, q), p and q
uncovered, says that a chain of chosen options reads from p and feeds q; an option that contains
both ends is refused. Adding an option eliminates its nodes from the relation as a vertex is
eliminated from a graph, so the relation is complete and every path to the end is an acyclic cover.
Options whose outside inputs all precede their first node never make detours; with single-exit
options the relation is a function of the covered set. Hence states are few in practice: on
intervals between cut points there is one per position, and where no option crosses a position,
exactly one state remains, so the work grows with the number of pieces and not with their product.

Where backends cannot share a process, a state also says which of these its options belong to, and an
option of a backend that one of them excludes is refused. Without conflicts that is nothing, and costs it.

Covered sets are kept relative to the first uncovered node: ints stay as short as the options are.
Many parallel branches with many options that jump between them can still make states explode. Where
more than `WIDEST` states meet at one node, their next option must be contiguous; and where all states
together would pass `MOST_STATES`, those with the fewest nodes covered ahead are kept at each node, half
of what is left each time. The space then says that it is not `complete`, and what is found in it is
the best of what is left.

The space depends on no cost, so a lazy search builds it once and evaluates it every round:
O(steps) each. Options need not be checked for convexity: one that is not convex is a cycle by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, first, indices
from collage.search.problem import Option, Problem

WIDEST = 10_000
"""States with the same first uncovered node that are expanded with every option."""

MOST_STATES = 500_000
"""States in all; more take gigabytes."""

Detours = tuple[tuple[int, IndexSet], ...]
"""Per uncovered node p, ascending: the uncovered nodes that must come after it; absolute indices."""

Step = tuple[int, int]
"""(option number, next state number)."""

Incoming = list[dict[tuple[IndexSet, Detours, int], list[tuple[int, int]]]]
"""Per first uncovered node, per state found so far: the (option, source state) that lead to it."""


@dataclass(slots=True)
class _Offer:
    """An option relative to its first node; `reads` are the later nodes that it reads.

    `joins` is its backend among those that have conflicts, `excludes` those that it has conflicts with; both
    are sets of bits.
    """

    number: int
    nodes: IndexSet
    gaps: bool
    reads: IndexSet
    joins: int
    excludes: int


@dataclass
class StateSpace:
    """States numbered so that every step goes to a higher number.

    Attributes:
        options: those that the steps refer to, in the fixed order (`Problem.ordered`).
        steps: per state, in the order of the options.
        starts: per state, its first uncovered node (the number of nodes in the final state).
        final: the state in which all is covered; None when no cover exists.
        complete: every executable cover is a path; False where `WIDEST` or `MOST_STATES` was passed.
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
    """Enumerate the states that are reached with the usable options, at most `most_states`.

    There is at least one state for each node, however small `most_states` is.
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
        self.offers: list[list[_Offer]] = [[] for _ in range(self.size)]
        joins, excludes = _conflicts(space)
        for number, option in enumerate(space.options):
            start = first(option.nodes)
            nodes = option.nodes >> start
            # Only a node in a gap can be read and come later: contiguous options have none.
            gaps = nodes ^ ((1 << nodes.bit_length()) - 1)
            reads = self.edges.reads(option.nodes) >> start & gaps if gaps else 0
            name = option.backend
            self.offers[start].append(
                _Offer(number, nodes, bool(gaps), reads, joins.get(name, 0), excludes.get(name, 0))
            )

    def run(self) -> None:
        # Steps to a state are known before its number: states are numbered when their turn comes.
        incoming: Incoming = [{} for _ in range(self.size + 1)]
        incoming[0][0, (), 0] = []
        space = self.space
        for start in range(self.size + 1):
            self._cut(incoming, start)
            for (covered, detours, joined), steps in incoming[start].items():
                state = len(space.steps)
                space.steps.append([])
                space.starts.append(start)
                for option, source in steps:
                    space.steps[source].append((option, state))
                if start < self.size:
                    self._expand(incoming, state, covered, detours, joined)
            incoming[start] = {}
        if space.starts[-1] == self.size:
            space.final = len(space.steps) - 1
        for steps in space.steps:
            steps.sort()

    def _cut(self, incoming: Incoming, start: int) -> None:
        """Keep half of the states that are left, and one for each later node.

        The fewer nodes are covered ahead, the more options fit next: where single nodes can be
        chosen, the state with none is always there, so a cut space still has a cover.
        """
        left = self.most_states - len(self.space.steps) - (self.size - start)
        most = max(1, left // 2)
        if len(incoming[start]) > most:
            self.space.complete = False
            fewest = sorted(incoming[start], key=lambda state: (state[0].bit_count(), state))
            incoming[start] = {state: incoming[start][state] for state in fewest[:most]}

    def _expand(
        self, incoming: Incoming, state: int, covered: IndexSet, detours: Detours, joined: int
    ) -> None:
        start = self.space.starts[state]
        narrow = len(incoming[start]) > WIDEST
        for offer in self.offers[start]:
            if offer.nodes & covered or offer.excludes & joined:
                continue
            if narrow and offer.gaps:
                self.space.complete = False
                continue
            closing = detours or offer.reads & ~covered
            then = self._detours(start, covered, detours, offer) if closing else ()
            if then is None:
                continue
            union = offer.nodes | covered
            skip = (~union & (union + 1)).bit_length() - 1
            target = incoming[start + skip]
            with_it = joined | offer.joins if start + skip < self.size else 0  # one final state
            target.setdefault((union >> skip, then, with_it), []).append((offer.number, state))

    def _detours(
        self, start: int, covered: IndexSet, detours: Detours, offer: _Offer
    ) -> Detours | None:
        """Return the detours after adding the option, None when it closes a cycle."""
        nodes = offer.nodes << start
        done = covered << start | ((1 << start) - 1) | nodes
        before = (offer.reads << start) & ~done
        after = self.edges.fed(nodes) & ~done
        for p, q in detours:
            if nodes >> p & 1:
                if q & nodes:
                    return None
                after |= q
            elif q & nodes:
                before |= 1 << p
        if before & after:
            return None
        kept = {p: q & ~nodes for p, q in detours if not nodes >> p & 1}
        if after:
            for p in indices(before):
                kept[p] = kept.get(p, 0) | after
        return tuple((p, q) for p, q in sorted(kept.items()) if q)


def _conflicts(space: StateSpace) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bit of every backend that has conflicts here, and the bits of those."""
    names = {option.backend for option in space.options}
    others = {name: names & space.problem.conflicts.get(name, frozenset()) for name in names}
    divided = sorted(name for name, found in others.items() if found)
    bits = {name: 1 << place for place, name in enumerate(divided)}
    return bits, {name: sum(bits[other] for other in others[name]) for name in divided}


class Edges:
    """Direct neighbours of every node, as lists: reading them costs what they hold."""

    def __init__(self, graph: DataflowGraph) -> None:
        producer = graph.producer
        self.before: list[list[int]] = [[] for _ in graph.nodes]
        self.after: list[list[int]] = [[] for _ in graph.nodes]
        for node in graph.nodes:
            for source in sorted({producer[v] for v in node.inputs if v in producer}):
                self.before[node.index].append(source)
                self.after[source].append(node.index)
        self._read_bits = [sum(1 << p for p in before) for before in self.before]
        self._fed_bits = [sum(1 << q for q in after) for after in self.after]

    def reads(self, nodes: IndexSet) -> IndexSet:
        """Return the nodes outside whose outputs `nodes` read."""
        return self._union(self._read_bits, nodes)

    def fed(self, nodes: IndexSet) -> IndexSet:
        """Return the nodes outside that read outputs of `nodes`."""
        return self._union(self._fed_bits, nodes)

    def _union(self, table: list[IndexSet], nodes: IndexSet) -> IndexSet:
        found = 0
        for index in indices(nodes):
            found |= table[index]
        return found & ~nodes

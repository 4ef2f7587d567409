"""TVM's own fusion groups, and variations of them (the native style of DESIGN 4.2).

`fuse_ops` is TVM's algorithm (src/relax/transform/fuse_ops.cc): for each node in topological order, it joins
the node, its immediate post-dominator and everything on the paths between, if the kinds on the paths allow
it. Injective nodes wait for a second phase, so that anchors take their element-wise consumers first, and a
third phase joins injective nodes into joined tuples. A returned node has no post-dominator. The algorithm and
the pairwise combiner each find groups that the other misses; the candidates are the groups of both. Time is
O(nodes * longest path between a node and its post-dominator).
"""

from collections.abc import Callable
from dataclasses import dataclass

from collage.graph.dataflow import DataflowGraph
from collage.graph.index_set import IndexSet, index_set, indices
from collage.graph.op_pattern import OpPatternKind as Kind
from collage.graph.sub_graph import SubGraph, SubGraphConfig
from collage.rules.base_rules import OpCallByKind, Singles
from collage.rules.combine import FUSE_OPS_KINDS, AllSimple, Combine, TupleArg, TupleProj
from collage.rules.rule import Candidate, PartitionRule, PartitionSpec, unique
from collage.rules.wrap import OnlyValid, Primitive, Union

MAX_FUSED = 256
"""TVM's default limit on the nodes of one group."""
ONE_RESULT = SubGraphConfig(max_exits=1, allow_escaping=False)
"""TVM does not return a kernel's intermediate results."""


@dataclass(frozen=True)
class FuseOps(PartitionRule):
    """TVM's own groups within `supported`, and the prefixes and suffixes of each (it may fuse less)."""

    supported: IndexSet

    def candidates(self, graph: DataflowGraph, spec: PartitionSpec) -> list[Candidate]:
        groups = fuse_ops(graph, self.supported)
        candidates = [Candidate(SubGraph(graph, group), spec, "FuseOps") for group in groups]
        for group in groups:
            members = list(indices(group))
            for length in range(1, len(members)):
                for part in (members[:length], members[length:]):
                    sub_graph = SubGraph(graph, index_set(part))
                    if sub_graph.is_connected:
                        candidates.append(Candidate(sub_graph, spec, "FuseOps.part"))
        return unique(candidates)


def native_rule(
    supported: IndexSet, max_depth: int = 5, max_nodes: int = 8, max_candidates_per_node: int = 6
) -> PartitionRule:
    """Return the default rule of native backends.

    Fusable operators, combined by TVM's kinds and through tuples as far as the limits allow, and the groups
    of `fuse_ops`; beside them every single node. Each is a kernel that nothing joins further.
    """
    combined = Combine(
        OpCallByKind(nodes=supported),
        (AllSimple(FUSE_OPS_KINDS), TupleArg(), TupleProj()),
        max_depth,
        max_nodes,
        max_candidates_per_node=max_candidates_per_node,
    )
    fused = OnlyValid(Union((FuseOps(supported), combined)), ONE_RESULT)
    return Primitive(Union((Singles(supported), fused)), codegen=False)


def fuse_ops(
    graph: DataflowGraph, supported: IndexSet | None = None, max_fused: int = MAX_FUSED
) -> list[IndexSet]:
    """Return TVM's fusion groups, single nodes included, by first node; they cover `supported`."""
    nodes = graph.everything if supported is None else supported
    fuser = _Fuser(graph, nodes, max_fused)
    for phase in range(3):
        for index in indices(nodes):
            fuser.visit(index, phase)
    return sorted(fuser.groups(), key=lambda group: group & -group)


@dataclass(frozen=True, slots=True)
class _Dominator:
    """The immediate post-dominator of a node and the highest kind of an edge on the way."""

    index: int
    edge_kind: Kind
    depth: int


class _Fuser:
    """The mutable state of `fuse_ops`: a union-find with the last nodes of groups as roots."""

    def __init__(self, graph: DataflowGraph, nodes: IndexSet, max_fused: int) -> None:
        self._graph, self._nodes, self._max_fused = graph, nodes, max_fused
        self._root = list(range(len(graph)))
        self._kind = [
            Kind.TUPLE
            if node.op == "tuple"
            else node.kind
            if nodes >> node.index & 1
            else Kind.OPAQUE
            for node in graph.nodes
        ]
        self._own_kind = tuple(self._kind)
        self._size = [1] * len(graph)
        self._dominators = _post_dominators(graph, self._own_kind)

    def groups(self) -> list[IndexSet]:
        by_root: dict[int, IndexSet] = {}
        for index in indices(self._nodes):
            root = self._find(index)
            by_root[root] = by_root.get(root, 0) | 1 << index
        return list(by_root.values())

    def visit(self, index: int, phase: int) -> None:
        """Try to join node `index` with its post-dominator."""
        dominator = self._dominators[index]
        # The group's pattern at this node: TVM reads the node's own group record here.
        kind = self._kind[index]
        if kind == Kind.OPAQUE or dominator is None:
            return
        sink = dominator.index
        if phase == 2:
            self._visit_tuple(index, sink)
        elif self._find(index) == self._find(sink) or self._kind[sink] == Kind.TUPLE:
            return
        elif kind == Kind.OUT_ELEMWISE_FUSABLE:
            if phase == 0 and dominator.edge_kind == Kind.ELEMWISE:
                self._join(
                    index, sink, lambda kind_on_path, is_sink: kind_on_path <= Kind.BROADCAST
                )
        elif kind <= Kind.BROADCAST:
            if dominator.edge_kind <= Kind.COMM_REDUCE:
                self._join(index, sink, _below_injective)
        elif kind in (Kind.INJECTIVE, Kind.TUPLE) and phase == 1:
            self._join(index, sink, lambda kind_on_path, is_sink: kind_on_path <= Kind.INJECTIVE)

    def _visit_tuple(self, index: int, sink: int) -> None:
        root_kind = self._kind[self._find(sink)]
        if self._kind[index] > Kind.INJECTIVE or root_kind == Kind.TUPLE:
            return
        if self._kind[sink] == Kind.TUPLE and root_kind <= Kind.INJECTIVE:
            self._join(index, sink, lambda kind_on_path, is_sink: kind_on_path <= Kind.INJECTIVE)

    def _join(self, source: int, sink: int, allowed: Callable[[Kind, bool], bool]) -> None:
        between = self._between(source, sink)
        if not all(
            allowed(self._kind[self._find(index)], index == sink) for index in indices(between)
        ):
            return
        members = {self._find(index) for index in indices(between | 1 << source)}
        if sum(self._size[root] for root in members) > self._max_fused:
            return
        target = self._find(sink)
        for index in indices(between | 1 << source):
            self._merge(index, target)

    def _between(self, source: int, sink: int) -> IndexSet:
        """Return the nodes on the paths from `source` (excluded) to `sink` (included)."""
        visited, frontier = 0, self._graph.successors[source]
        while frontier:
            visited |= frontier
            grown = 0
            for index in indices(frontier & ~(1 << sink)):
                grown |= self._graph.successors[index]
            frontier = grown & ~visited
        return visited

    def _merge(self, index: int, target: int) -> None:
        root = self._find(index)
        if root == target:
            return
        self._root[root] = target
        self._size[target] += self._size[root]
        if Kind.OUT_ELEMWISE_FUSABLE in (self._own_kind[root], self._kind[root]):
            self._kind[target] = Kind(max(self._kind[root], self._kind[target]))

    def _find(self, index: int) -> int:
        while self._root[index] != index:
            self._root[index] = self._root[self._root[index]]
            index = self._root[index]
        return index


def _below_injective(kind: Kind, is_sink: bool) -> bool:
    """Accept any injective node on the path, and a sink of a group that may have an anchor."""
    return kind <= Kind.INJECTIVE or (is_sink and kind <= Kind.OUT_ELEMWISE_FUSABLE)


def _post_dominators(graph: DataflowGraph, kinds: tuple[Kind, ...]) -> list[_Dominator | None]:
    """Return the immediate post-dominator of each node; None for paths without a common node."""
    dominators: list[_Dominator | None] = [None] * len(graph)
    depth = [1] * len(graph)
    for index in reversed(range(len(graph))):
        readers = list(indices(graph.successors[index]))
        if graph.external >> index & 1 or not readers:
            continue
        meet: int | None = readers[0]
        edge = _edge_kind(graph, index, readers[0], kinds)
        for reader in readers[1:]:
            edge = max(edge, _edge_kind(graph, index, reader, kinds))
            if meet is None:
                break
            meet, edge = _meet(dominators, depth, (meet, reader), edge)
        if meet is not None:
            dominators[index] = _Dominator(meet, edge, depth[meet] + 1)
            depth[index] = depth[meet] + 1
    return dominators


def _meet(
    dominators: list[_Dominator | None], depth: list[int], pair: tuple[int, int], edge: Kind
) -> tuple[int | None, Kind]:
    """Return the first common post-dominator of two nodes and the highest edge kind up to it."""
    left, right = pair
    while left != right:
        if depth[left] < depth[right]:
            left, right = right, left
        dominator = dominators[left]
        if dominator is None:
            return None, edge
        edge = max(edge, dominator.edge_kind)
        left = dominator.index
    return left, edge


def _edge_kind(graph: DataflowGraph, source: int, reader: int, kinds: tuple[Kind, ...]) -> Kind:
    """Return the kind of an edge: the reader's; a broadcast without a change of shape is element-wise."""
    node = graph.nodes[reader]
    if kinds[reader] != Kind.BROADCAST or not node.outputs:
        return kinds[reader]
    result = graph.types.get(node.outputs[0])
    read = [graph.types.get(value) for value in graph.nodes[source].outputs if value in node.inputs]
    keeps_shape = result is not None and all(
        value_type is not None and value_type.shape == result.shape for value_type in read
    )
    return Kind.ELEMWISE if keeps_shape else Kind.BROADCAST

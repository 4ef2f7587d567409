"""Graphs by hand or at random, and every cover of them by brute force."""

from hypothesis import strategies as st

from collage.cost.cost import Cost
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.index_set import index_set, indices
from collage.graph.op_pattern import OpPatternKind
from collage.search import Option, Problem


def graph_of(*inputs, ops=None):
    """Make a graph: per node the indices of the nodes it reads; node i is named n<i>."""
    nodes = [
        Node(
            i,
            f"n{i}",
            ops[i] if ops else "relu",
            OpPatternKind.ELEMWISE,
            inputs=tuple(f"v{p}" for p in before) or ("x",),
            outputs=(f"v{i}",),
        )
        for i, before in enumerate(inputs)
    ]
    return DataflowGraph(tuple(nodes), {}, ("x",), (f"v{len(nodes) - 1}",))


def chain(length):
    return graph_of(*[(i - 1,) if i else () for i in range(length)])


class Bounds:
    """Estimates costs at bounds by key, 0 where there is none: an exact search where the bounds are true."""

    def __init__(self, bounds=None):
        self._bounds = bounds or {}

    @classmethod
    def of(cls, costs, share, otherwise=0.0):
        """Bound valid costs at a share of them."""
        return cls({k: c.seconds * share if c.is_valid else otherwise for k, c in costs.items()})

    def estimate(self, candidate):
        return self._bounds.get(candidate.key, 0.0)

    def observe(self, candidate, cost):
        pass


def option(*nodes, backend="tvm", key=None, priority=0):
    key = key if key is not None else (backend, nodes)
    return Option(index_set(nodes), key, backend, priority)


def is_convex(graph, nodes):
    """No path leaves the set and comes back."""
    for node in indices(nodes):
        for outside in indices(graph.downstream[node] & ~nodes):
            if graph.downstream[outside] & nodes:
                return False
    return True


def is_executable(graph, chosen):
    """Some order runs every option after all that it reads."""
    done, waiting = 0, list(chosen)
    while waiting:
        ready = [o for o in waiting if not reads(graph, o.nodes) & ~done]
        if not ready:
            return False
        for o in ready:
            done |= o.nodes
            waiting.remove(o)
    return True


def reads(graph, nodes):
    sources = 0
    for node in indices(nodes):
        sources |= graph.predecessors[node]
    return sources & ~nodes


def all_plans(problem, costs):
    """Return (seconds, frozenset of options) of every executable exact cover by valid options."""
    everything = (1 << len(problem.graph)) - 1
    usable = [o for o in problem.ordered if costs.get(o.key, Cost.unknown()).is_valid]
    plans = []

    def extend(covered, chosen):
        if covered == everything:
            if is_executable(problem.graph, chosen):
                seconds = sum(
                    costs[o.key].seconds + problem.dispatch_overhead_s.get(o.backend, 0.0)
                    for o in chosen
                )
                plans.append((seconds, frozenset(chosen)))
            return
        missing = ~covered & (covered + 1)
        for o in usable:
            if o.nodes & missing and not o.nodes & covered:
                extend(covered | o.nodes, [*chosen, o])

    extend(0, [])
    return sorted(plans, key=lambda plan: plan[0])


def check_order(graph, plan):
    """Every option of the plan reads only what earlier ones made."""
    done = 0
    for o in plan.options:
        assert not reads(graph, o.nodes) & ~done
        assert not o.nodes & done
        done |= o.nodes
    assert done == (1 << len(graph)) - 1


@st.composite
def problems(draw, singles=True, max_nodes=9, max_cost=12):
    """Draw a random DAG, convex options with any number of exits, and integer costs."""
    size = draw(st.integers(1, max_nodes))
    inputs = [
        tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else ()
        for i in range(size)
    ]
    graph = graph_of(*inputs)
    subsets = st.integers(1, (1 << size) - 1).filter(lambda bits: is_convex(graph, bits))
    sets = draw(st.lists(subsets, max_size=14))
    if singles:
        sets += [1 << i for i in range(size)]
    backends = st.sampled_from(["tvm", "onednn"])
    options = [Option(bits, i, draw(backends)) for i, bits in enumerate(sets)]
    cost = st.one_of(
        st.integers(0, max_cost).map(lambda s: Cost(float(s))),
        st.integers(0, max_cost).map(lambda s: Cost(float(s))),
        st.integers(0, max_cost).map(lambda s: Cost(float(s))),
        st.just(Cost.invalid("refused")) if not singles else st.just(Cost(3.0)),
        st.just(Cost.unknown()) if not singles else st.just(Cost(5.0)),
    )
    costs = {i: draw(cost) for i in range(len(options))}
    boundary = {"tvm": float(draw(st.integers(0, 2))), "onednn": 1.0}
    return Problem(graph, options, boundary), costs

"""Behaviour on small graphs made by hand; the tables are those of upstream's pass tests."""

import math

import pytest

from collage.cost.cost import Cost
from collage.errors import SearchError
from collage.graph.index_set import indices
from collage.search import Problem, explain, find_plan, find_plans
from collage.search.shortest_path import least_plan
from collage.search.state_space import build_state_space
from collage.search.uncovered import no_cover
from tests.support.search_oracle import chain, check_order, graph_of, is_convex, option


def seconds(**by_key):
    return {key: Cost(value) for key, value in by_key.items()}


def test_options_that_read_from_each_other_exclude_each_other():
    # Two chains 0-1 and 2-3; {0, 3} and {1, 2} are convex alone but each reads from the other.
    graph = graph_of((), (0,), (), (2,))
    options = [option(0, 3, key="a"), option(1, 2, key="b")]
    options += [option(i, key=i) for i in range(4)]
    costs = seconds(a=1.0, b=1.0) | {i: Cost(3.0) for i in range(4)}
    plan = find_plan(Problem(graph, options), costs)
    assert plan.predicted_s == 7
    assert len(plan.options) == 3


def test_a_cycle_of_three_options_is_found():
    graph = graph_of((), (0,), (), (2,), (), (4,))
    ring = [option(0, 3, key="a"), option(2, 5, key="b"), option(1, 4, key="c")]
    with pytest.raises(SearchError, match="depend on each other in a cycle"):
        find_plan(Problem(graph, ring), seconds(a=1.0, b=1.0, c=1.0))


def test_an_option_is_ordered_by_its_reads_not_its_first_node():
    # {0, 3} reads node 2, so it runs last although it holds the first node.
    graph = graph_of((), (), (1,), (0, 2))
    options = [option(0, 3, key="late"), option(1, key="b"), option(2, key="c")]
    plan = find_plan(Problem(graph, options), seconds(late=1.0, b=1.0, c=1.0))
    assert [o.key for o in plan.options] == ["b", "c", "late"]


def test_a_dead_end_is_pruned():
    options = [option(0, 1, key="long"), option(0, key="a"), option(1, 2, key="b")]
    plan = find_plan(Problem(chain(3), options), seconds(long=0.1, a=5.0, b=5.0))
    assert [o.key for o in plan.options] == ["a", "b"]


def test_unknown_and_invalid_options_are_never_chosen():
    options = [option(0, key="a"), option(1, key="bad", backend="onednn"), option(1, key="new")]
    costs = seconds(a=1.0) | {"bad": Cost.invalid("no f64")}
    with pytest.raises(SearchError) as caught:
        find_plan(Problem(chain(2), options), costs)
    assert str(caught.value).splitlines() == [
        "no plan covers node 1 'n1' (relu): none of its 2 candidates is usable",
        "  onednn, 1 node: no f64",
        "  tvm, 1 node: not measured",
    ]


def test_a_node_without_any_candidate_is_named():
    with pytest.raises(SearchError, match=r"node 1 'n1' \(LSTM\): no backend offers"):
        find_plan(
            Problem(graph_of((), (0,), ops=["relu", "LSTM"]), [option(0)]),
            {("tvm", (0,)): Cost(1.0)},
        )


def test_boundary_cost_favours_fewer_calls():
    options = [option(0, key="a"), option(1, key="b"), option(0, 1, key="ab", backend="ort")]
    costs = seconds(a=1.0, b=1.0, ab=2.5)
    assert len(find_plan(Problem(chain(2), options), costs).options) == 2
    plan = find_plan(Problem(chain(2), options, {"tvm": 1.0, "ort": 1.0}), costs)
    assert [o.key for o in plan.options] == ["ab"]
    assert plan.predicted_s == 3.5


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"priority": 1}, {"priority": 0}, ["b", "b2"]),  # the preferred backend
        ({"priority": 0}, {"priority": 0}, ["a", "a2"]),  # the order of names
    ],
)
def test_ties(first, second, expected):
    options = [option(0, key="b", backend="y", **second), option(0, key="a", backend="x", **first)]
    options += [option(1, key="b2", backend="y", **second)]
    options += [option(1, key="a2", backend="x", **first)]
    costs = {key: Cost(0.1) for key in ("a", "b", "a2", "b2")}
    assert [o.key for o in find_plan(Problem(chain(2), options), costs).options] == expected


def test_ties_fall_to_fewer_calls_despite_float_rounding():
    options = [option(*range(3), key="all"), *[option(i, key=i) for i in range(3)]]
    costs = {"all": Cost(0.3)} | {i: Cost(0.1) for i in range(3)}
    assert [o.key for o in find_plan(Problem(chain(3), options), costs).options] == ["all"]


def test_an_empty_function_has_an_empty_plan():
    assert find_plan(Problem(graph_of(), []), {}).options == ()


def test_equal_nodes_of_two_backends_are_two_plans():
    options = [option(0, key="t"), option(0, key="o", backend="onednn"), option(0, key="t")]
    plans = find_plans(Problem(chain(1), options), seconds(t=2.0, o=1.0), 5)
    assert [plan.backends for plan in plans] == [("onednn",), ("tvm",)]


def test_an_unusable_option_is_explained_with_its_reason():
    options = [option(0, key="a"), option(0, key="b", backend="ov"), option(0, key="c")]
    options += [option(1, key="d"), option(0, 1, key="ad")]
    costs = seconds(a=1.0, d=1.0, ad=5.0) | {"b": Cost.invalid("refused")}
    regrets = {
        r.option.key: (r.regret_s, r.reason)
        for r in explain(Problem(chain(2), options), costs).regrets
    }
    assert regrets == {
        "a": (0.0, ""),
        "d": (0.0, ""),
        "ad": (3.0, ""),
        "b": (math.inf, "refused"),
        "c": (math.inf, "not measured"),
    }


def parallel_nodes(count):
    """Nodes that read only the input, with every subset as an option: 2^n states."""
    graph = graph_of(*[()] * count)
    return Problem(graph, [option(*indices(bits)) for bits in range(1, 1 << count)])


def test_a_space_with_too_many_states_is_incomplete():
    problem = parallel_nodes(6)
    complete = build_state_space(problem, lambda _: True)
    cut = build_state_space(problem, lambda _: True, most_states=20)
    assert complete.complete
    assert len(complete.steps) > 20
    assert not cut.complete
    assert cut.final is not None
    assert len(cut.steps) <= 20


@pytest.mark.parametrize("most_states", [1, 7, 12, 33, 10_000])
def test_an_incomplete_space_still_has_a_valid_plan(most_states):
    problem = parallel_nodes(6)
    space = build_state_space(problem, lambda _: True, most_states=most_states)
    plan = least_plan(space, lambda option: 10.0 - option.size**2 / 4)
    assert len(space.steps) <= max(most_states, 7)
    check_order(problem.graph, plan)
    best = least_plan(
        build_state_space(problem, lambda _: True), lambda option: 10.0 - option.size**2 / 4
    )
    assert plan.predicted_s >= best.predicted_s
    assert space.complete == (most_states == 10_000)


def test_a_failure_in_an_incomplete_space_says_so():
    problem = Problem(parallel_nodes(6).graph, parallel_nodes(6).options[:-33])
    space = build_state_space(problem, lambda _: True, most_states=10)
    assert "not all were tried" in str(no_cover(space, {}))
    assert "not all" not in str(no_cover(build_state_space(problem, lambda _: True), {}))


BYOC_OPS = {"relu", "add", "concatenate"}
# graph, ops, (tvm base, byoc base), (tvm depth, byoc depth), total
UPSTREAM = {
    "single_op_llvm": ([()], ["relu"], (1, 2), (8, 8), 1.0),
    "single_op_byoc": ([()], ["relu"], (2, 1), (8, 8), 1.0),
    "diamond, depth 1": ([(), (0,), (1,), (1, 2)], None, None, None, None),
    "tvm_max_depth 1": ([(), (0,), (1,)], ["relu"] * 3, (100, 99), (1, 1), 297.0),
    "tvm_max_depth 2": ([(), (0,), (1,)], ["relu"] * 3, (100, 99), (2, 1), 289.0),
    "tvm_max_depth 3": ([(), (0,), (1,)], ["relu"] * 3, (100, 99), (3, 1), 271.0),
    "byoc_max_depth 2": ([(), (0,), (1,)], ["relu"] * 3, (99, 100), (1, 2), 289.0),
    "byoc_max_depth 3": ([(), (0,), (1,)], ["relu"] * 3, (99, 100), (1, 3), 271.0),
    "double_residual": (
        [(), (0,), (0, 1), (1, 2)], ["relu", "abs", "add", "add"], (2, 1), (4, 4), 4.9,
    ),
    "pruning_heuristic": (
        [(), (0,), (0, 1), (1, 2)], ["relu", "relu", "add", "add"], (2, 1), (4, 4), 3.439,
    ),
    "fusion_benefit": (
        [(), (0,), (), (2,), (1, 3), (4,), (5,)],
        ["relu", "relu", "abs", "relu", "add", "relu", "abs"], (5, 6), (1, 5), 34.5706,
    ),
}  # fmt: skip
UPSTREAM["diamond, depth 1"] = (
    [(), (0,), (1,), (1, 2)], ["relu", "abs", "relu", "add"], (2, 1), (1, 1), 5.0,
)  # fmt: skip
UPSTREAM["diamond, depth 3"] = (*UPSTREAM["diamond, depth 1"][:3], (1, 3), 4.9)


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstream_pass_cases(name):
    inputs, ops, bases, depths, total = UPSTREAM[name]
    graph = graph_of(*inputs, ops=ops)
    options, costs = [], {}
    for backend, base, depth in zip(("tvm", "byoc"), bases, depths, strict=True):
        for bits in range(1, 1 << len(graph)):
            members = list(indices(bits))
            is_supported = backend == "tvm" or all(ops[i] in BYOC_OPS for i in members)
            if is_supported and len(members) <= depth and is_convex(graph, bits):
                options.append(option(*members, backend=backend))
                costs[options[-1].key] = Cost(base * sum(0.9**k for k in range(len(members))))
    plan = find_plan(Problem(graph, options), costs)
    assert plan.predicted_s == pytest.approx(total, rel=1e-9)

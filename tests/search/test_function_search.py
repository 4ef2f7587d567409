"""One function's search: seeds, families, budgets, and the selected plans."""

import random

import pytest
from onnx.helper import make_node

from collage.backends.registry import known_backends
from collage.cost.cost import Cost
from collage.errors import SearchError
from collage.measure.measurement_request import MeasurementRequest
from collage.rules.rule import HOST
from collage.search import Problem, function_search
from collage.search.enumeration import EnumeratedFunction, enumerate_function
from collage.search.function_search import SearchLimits, has_family, search_function
from collage.search.plan_selection import select_plans
from collage.search.seeds import seed_chunks, tiling
from tests.frontend.build import imported, model
from tests.support.search_oracle import chain, option


def intervals(length, backend, longest, **arguments):
    return [
        option(*range(start, end), backend=backend, key=(backend, start, end), **arguments)
        for start in range(length)
        for end in range(start + 1, min(start + longest, length) + 1)
    ]


def problem_of(length=6):
    options = [*intervals(length, "ort", length), *intervals(length, "tvm", 2)]
    return Problem(chain(length), options)


def known_costs(problem):
    return {o.key: Cost(1.0 + 0.5 * o.size + 0.1 * (o.backend == "tvm")) for o in problem.options}


def enumerated(problem):
    work = {
        o.key: MeasurementRequest("main", o.nodes, o.backend)
        for o in problem.options
        if o.key != HOST
    }
    return EnumeratedFunction(None, (), problem, work)


class Meter:
    """A measurer with one second of its clock for each request."""

    def __init__(self, problem, costs=None):
        costs = costs or known_costs(problem)
        self.costs = {(o.nodes, o.backend): costs[o.key] for o in problem.options}
        self.requests = []

    def measure(self, batch, on_cost=None):
        self.requests += batch
        return [self.costs[work.nodes, work.backend] for work in batch]

    def clock(self):
        return float(len(self.requests))


@pytest.mark.parametrize(
    ("limit", "sizes"), [(1, [1] * 6), (2, [2] * 3), (4, [4, 2]), (6, [6]), (64, [6])]
)
def test_a_tiling_is_greedy_and_covers(limit, sizes):
    tiles = tiling(intervals(6, "ort", 6), limit)
    assert [tile.size for tile in tiles] == sizes
    assert sum(tile.nodes for tile in tiles) == 0b111111


def test_equally_large_options_of_a_place_are_all_tiles():
    twins = [option(0, 1, key="all"), option(0, 1, key="extended"), option(0, key="small")]
    assert {tile.key for tile in tiling(twins, 4)} == {"all", "extended"}


def test_a_tiling_prefers_the_largest_known_option():
    options = intervals(6, "ort", 6)
    tiles = tiling(options, 4, {("ort", 0, 2), ("ort", 0, 1), ("ort", 0, 6)})
    assert [tile.key for tile in tiles] == [("ort", 0, 2), ("ort", 2, 6)]


def test_known_tiles_replace_all_but_the_largest():
    problem = problem_of()
    without_known = next(seed_chunks(problem))
    halves = {("ort", 0, 3), ("ort", 3, 6)}
    first, *chunks = seed_chunks(problem, known_keys=halves)
    assert first == without_known
    later = {key for chunk in chunks for key in chunk}
    assert halves <= later
    assert ("ort", 0, 4) not in later


def test_the_first_chunk_covers_the_function_with_every_backend():
    problem = problem_of()
    chunks = list(seed_chunks(problem))
    by_key = {o.key: o for o in problem.options}
    for backend in ("ort", "tvm"):
        nodes = [by_key[key].nodes for key in chunks[0] if key[0] == backend]
        assert sum(nodes) == 0b111111
    flat = [key for chunk in chunks for key in chunk]
    assert len(flat) == len(set(flat))
    assert {("ort", i, i + 1) for i in range(6)} <= set(flat)


def test_a_large_batch_gets_full_chunks_of_the_same_keys():
    problem = Problem(chain(30), intervals(30, "ort", 6))
    few = [key for chunk in seed_chunks(problem) for key in chunk]
    *full, last = seed_chunks(problem, 25)
    assert [len(chunk) for chunk in full] == [25] * len(full)
    assert 0 < len(last) <= 25
    assert [key for chunk in (*full, last) for key in chunk] == few


def test_views_are_no_seeds():
    problem = Problem(chain(2), [*intervals(2, "ort", 2), option(0, backend=HOST, key=HOST)])
    assert HOST not in [key for chunk in seed_chunks(problem) for key in chunk]


def test_selected_plans_are_distinct_with_one_per_backend():
    problem = problem_of()
    plans = select_plans(problem, known_costs(problem), 3)
    assert plans[0].name.startswith("whole-ort")
    assert {plan.single for plan in plans} >= {"ort", "tvm"}
    assert len({plan.plan.options for plan in plans}) == len(plans)
    assert len({plan.name for plan in plans}) == len(plans)
    for plan in plans:
        assert sum(o.nodes for o in plan.plan.options) == 0b111111
        used = set(plan.plan.backends)
        assert (plan.single in used and len(used) == 1) if plan.single else len(used) > 1


def test_fewer_boundaries_are_predicted_without_the_penalty():
    options = [option(0, key="a"), option(1, key="b"), option(0, 1, key="ab")]
    costs = {"a": Cost(1e-6), "b": Cost(1e-6), "ab": Cost(4.5e-6)}
    options += [option(2, key="c"), option(2, key="d", backend="ort")]
    costs |= {"c": Cost(1e-6), "d": Cost(5e-7)}
    plans = {p.name: p.plan for p in select_plans(Problem(chain(3), options), costs, 1)}
    assert plans["best-1"].predicted_s == pytest.approx(2.5e-6)
    fewer = plans["fewer-borders-10us"]
    assert [o.key for o in fewer.options] == ["ab", "d"]
    assert fewer.predicted_s == pytest.approx(5e-6)


def test_known_costs_and_no_budget_measure_nothing():
    problem = problem_of()
    meter = Meter(problem)
    search = search_function(
        enumerated(problem),
        meter,
        known_costs(problem),
        SearchLimits(plans=2, budget_s=0.0, clock=meter.clock),
    )
    assert meter.requests == []
    assert search.lazy.plan.predicted_s == 4.0
    assert search.plans[0].plan.options == search.lazy.plan.options


def test_without_costs_or_budget_one_plan_is_measured():
    problem = problem_of()
    meter = Meter(problem)
    search = search_function(
        enumerated(problem), meter, {}, SearchLimits(plans=2, budget_s=0.0, clock=meter.clock)
    )
    assert {(w.nodes, w.backend) for w in meter.requests} == {
        (o.nodes, o.backend) for o in problem.options if o.key in next(seed_chunks(problem))
    }
    assert search.plans


def test_a_budget_ends_the_search():
    problem = problem_of(30)
    meter = Meter(problem)
    search_function(
        enumerated(problem), meter, {}, SearchLimits(plans=1, budget_s=60.0, clock=meter.clock)
    )
    assert len(meter.requests) <= 60 + 24 + 16  # a chunk or batch in progress ends
    assert len(meter.requests) < len(problem.options) / 2


def of_a_family(problem, length):
    """Return the costs known after a search of the first `length` nodes."""
    costs = known_costs(problem)
    return {o.key: costs[o.key] for o in problem.options if o.nodes < 1 << length}


def test_a_family_has_many_costs_but_not_the_largest_tile():
    problem = problem_of(30)
    family_costs = of_a_family(problem, 15)
    assert has_family(problem, family_costs)
    assert not has_family(problem, {})
    assert not has_family(problem, of_a_family(problem, 6))
    largest = max(problem.options, key=lambda o: o.size)
    assert not has_family(problem, {**family_costs, largest.key: Cost(1.0)})
    views = Problem(chain(1), [option(0, backend=HOST, key=HOST)])
    assert not has_family(views, {HOST: Cost(1.0)})


def test_with_a_family_a_search_ends_without_improvement(monkeypatch):
    problem = problem_of(30)
    rng = random.Random(0)
    scattered = {o.key: Cost((0.1 + o.size) * rng.uniform(0.9, 1.0)) for o in problem.options}
    family_costs = {o.key: scattered[o.key] for o in problem.options if o.nodes < 1 << 15}

    def searched():
        meter = Meter(problem, scattered)
        search = search_function(
            enumerated(problem),
            meter,
            family_costs,
            SearchLimits(plans=1, budget_s=1e6, clock=meter.clock),
        )
        return search.lazy.plan.predicted_s, len(meter.requests)

    plan_s, measured = searched()
    monkeypatch.setattr(function_search, "PATIENCE_SHARE", 1.0)
    best_s, measured_with_patience = searched()
    assert plan_s <= 1.01 * best_s
    assert measured < 0.5 * measured_with_patience


@pytest.mark.parametrize(
    ("nodes", "backend", "device", "advised"),
    [
        (["Softmax"], "cublas", "cuda", True),
        (["Softmax"], "winograd", "cpu", True),
        (["NonZero"], "cublas", "cuda", False),
    ],
)
def test_the_advice_names_supporting_backends_of_the_device(
    tmp_path, nodes, backend, device, advised
):
    onnx_model = model([make_node(nodes[0], ["x"], ["y"])], {"x": ("float32", (4, 8))}, ["y"])
    imported_function = imported(onnx_model, tmp_path)
    chosen_backends = known_backends([backend], device)
    with pytest.raises(SearchError) as refusal:
        enumerate_function(imported_function, chosen_backends)
    first_line = str(refusal.value).splitlines()[0]
    if not advised:
        assert "no other backend for cuda does: replace this operator" in first_line
        return
    names = first_line.partition("; add ")[2].partition(" to --backends")[0].split(" or ")
    backends = {backend.name: backend for backend in known_backends(None, device)}
    assert set(names) <= backends.keys()
    assert all(backends[name].unsupported(imported_function, 0) is None for name in names)

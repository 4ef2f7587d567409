"""Roofline bounds, and what they prove about a plan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from collage.cost import Cost
from collage.frontend.region import region_bytes_and_flops
from collage.measure.peaks import Peaks
from collage.rules.rule import HOST
from collage.search.bounds import RooflineBounds, bounded_optimum
from collage.search.lazy import search_lazily
from collage.search.problem import Option, Problem
from tests.frontend.build import floats, imported, model
from tests.search.test_lazy import Meter
from tests.support.search_oracle import Bounds, all_plans, chain, problems

PEAKS = Peaks(1e9, 1e9, 1e9)


class TrueBounds(Bounds):
    """Bounds that hold: a share of the costs."""

    def bound_s(self, option):
        return self.estimate(option)


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """x (8, 64) times a weight (64, 64), and relu."""
    folder = tmp_path_factory.mktemp("product")
    nodes = [make_node("MatMul", ["x", "w"], ["p"]), make_node("Relu", ["p"], ["y"])]
    document = model(nodes, {"x": ("float32", (8, 64))}, ["y"], {"w": floats(64, 64)})
    return imported(document, folder)


def option(nodes, backend="tvm", **changes):
    return Option(nodes, f"{backend}-{nodes}", backend, **changes)


def test_a_bound_is_the_slower_of_traffic_and_products(product):
    moved, flops = region_bytes_and_flops(product, 0b01)
    assert (moved, flops) == (4 * (8 * 64 + 64 * 64 + 8 * 64), 2 * 8 * 64 * 64)
    assert RooflineBounds(product, PEAKS).bound_s(option(0b01)) == pytest.approx(flops / 1e9)
    bounds = RooflineBounds(product, Peaks(1e12, 1e9, 1e9))
    assert bounds.bound_s(option(0b01)) == pytest.approx(moved / 1e9)


def test_no_bound_is_claimed_where_a_rate_does_not_hold(product):
    bounds = RooflineBounds(product, PEAKS, algorithmic_savings={"winograd"})
    traffic_s = region_bytes_and_flops(product, 0b01)[0] / 1e9
    assert bounds.bound_s(option(0b01, "winograd")) == pytest.approx(traffic_s)
    assert bounds.bound_s(option(0b01, precision="bf16")) == 0
    assert bounds.bound_s(option(0b10, HOST)) == 0
    on_gpu = RooflineBounds(product, PEAKS, bounds_flops=False)
    assert on_gpu.bound_s(option(0b01)) == pytest.approx(traffic_s)


def test_a_faster_kernel_raises_the_rates(product):
    """No measured kernel is below its own bound, whatever the probes said."""
    bounds = RooflineBounds(product, PEAKS, algorithmic_savings={"winograd"})
    fast = option(0b01)
    bounds.observe(fast, Cost(1e-6))
    assert bounds.bound_s(fast) == pytest.approx(1e-6)
    before = bounds.peaks.flops_per_s
    bounds.observe(option(0b01, "winograd"), Cost(1e-7))
    bounds.observe(option(0b01, precision="bf16"), Cost(1e-8))
    bounds.observe(fast, Cost.invalid("refused"))
    assert bounds.peaks.flops_per_s == before


@settings(max_examples=100, deadline=None)
@given(problems(), st.floats(0.0, 1.0), st.data())
def test_a_proven_plan_is_the_optimum_of_brute_force(drawn, share, data):
    """Whatever was measured, the optimum lies between the bound and the plan."""
    problem, costs = drawn
    measured = {
        key: cost for key, cost in costs.items() if data.draw(st.booleans(), label=str(key))
    }
    best_s = all_plans(problem, costs)[0][0]
    optimum = bounded_optimum(problem, measured, TrueBounds.of(costs, share))
    if optimum is None:
        assert not all_plans(problem, measured)
        return
    assert optimum.bound_s <= best_s <= optimum.plan_s
    assert not optimum.is_proven or optimum.plan_s == best_s


def test_bounds_prove_what_estimates_cannot():
    """Half of the options are unmeasured; their bounds alone exceed the measured plan."""
    options = [Option(1 << node, (name, node), name) for node in range(3) for name in ("a", "b")]
    problem = Problem(chain(3), options)
    measured = {("a", node): Cost(1.0) for node in range(3)}
    costs = measured | {("b", node): Cost(1.5) for node in range(3)}
    assert bounded_optimum(problem, measured, TrueBounds.of(costs, 0.8)).is_proven
    loose = bounded_optimum(problem, measured, TrueBounds.of(costs, 0.5))
    assert (loose.is_proven, loose.bound_s, loose.plan_s) == (False, 2.25, 3.0)


def test_a_search_measures_nothing_that_its_bound_excludes():
    """The estimate alone promises a faster plan on `b`; the bound does not."""
    options = [Option(1 << node, (name, node), name) for node in range(3) for name in ("a", "b")]
    problem = Problem(chain(3), options)
    costs = {option.key: Cost(1.0 if option.backend == "a" else 1.5) for option in options}
    seeds = [("a", node) for node in range(3)]
    for share, expected in ((0.8, 3), (0.5, 6)):
        result = search_lazily(
            problem,
            Meter(costs),
            estimator=Bounds(),
            seeds=seeds,
            bounds=TrueBounds.of(costs, share),
        )
        assert (result.measured, result.plan.predicted_s) == (expected, 3.0)

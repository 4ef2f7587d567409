"""In-context costs: samples from executables, and the correction of kernels without a sample."""

import pytest

from collage.cost import Cost
from collage.rules.rule import HOST
from collage.search.graph_launches import predicted_s
from collage.search.in_context import InContextCosts, InContextSample, scaled_by_speed
from collage.search.problem import Option, Plan, Problem
from tests.support.search_oracle import chain


def option(node, backend, variant=""):
    return Option(1 << node, f"{backend}-{variant}-{node}", backend, variant=variant)


CHOSEN = (option(0, "onednn"), option(1, "winograd", "f2"), Option(0b100, HOST, HOST),
          option(3, "tvm"))  # fmt: skip
OTHERS = (option(0, "winograd", "f2"), option(1, "onednn"), option(3, "openvino"))
PLAN = Plan(CHOSEN, 0.0)


@pytest.fixture
def in_place():
    options = (*CHOSEN, *OTHERS)
    costs = {option.key: Cost(1e-3, 0.9e-3, 1.2e-3, (1e-3,)) for option in options}
    costs[HOST] = Cost(0.0)
    costs["onednn--1"] = Cost.invalid("refused")
    return InContextCosts(Problem(chain(4), options), costs)


def test_without_samples_costs_stay_isolated(in_place):
    assert in_place.corrected() == in_place.costs
    in_place.add(PLAN, {}, 1e-3, 1e-3)
    assert in_place.corrected() == in_place.costs


def test_sampled_kernels_add_up_to_the_call(in_place):
    in_place.add(PLAN, {0: 1e-3, 1: 2e-3, 3: 0.4e-3}, 3.7e-3, 3.7e-3)
    costs = in_place.corrected()
    assert predicted_s(in_place.problem, costs, PLAN) == pytest.approx(3.7e-3)
    assert costs["winograd-f2-1"].seconds == pytest.approx(2.1e-3)  # with its share of the overhead
    assert costs["winograd-f2-1"].low == pytest.approx(0.9 * 2.1e-3)
    assert costs["winograd-f2-1"].samples == pytest.approx((2.1e-3,))


def test_kernels_slowed_by_the_timer_add_up_to_the_call(in_place):
    in_place.add(PLAN, {0: 1e-3, 1: 2e-3, 3: 1e-3}, 3.6e-3, 3.6e-3)
    assert in_place.corrected()["onednn--0"].seconds == pytest.approx(0.9e-3)
    assert predicted_s(in_place.problem, in_place.corrected(), PLAN) == pytest.approx(3.6e-3)


def test_samples_are_scaled_to_the_comparison_rounds(in_place):
    in_place.add(PLAN, {0: 1e-3, 1: 2e-3, 3: 0.4e-3}, 3.7e-3, 7.4e-3)
    costs = in_place.corrected()
    assert predicted_s(in_place.problem, costs, PLAN) == pytest.approx(7.4e-3)
    assert costs["winograd-f2-1"].seconds == pytest.approx(4.2e-3)


def test_unsampled_kernels_follow_their_implementation(in_place):
    in_place.add(PLAN, {0: 1e-3, 1: 2e-3, 3: 0.5e-3}, 3.5e-3, 3.5e-3)
    costs = in_place.corrected()
    overall = 3.5 / 3
    assert costs["openvino--3"].seconds == pytest.approx(overall * 1e-3)
    assert overall * 1e-3 < costs["winograd-f2-0"].seconds < 2e-3
    assert costs["winograd-f2-0"].seconds == pytest.approx((2 + 0.3 * overall) / 1.3 * 1e-3)
    assert costs["onednn--1"].is_invalid
    assert costs[HOST].seconds == 0.0


def test_a_plan_is_sampled_with_samples_of_all_kernels(in_place):
    assert not in_place.is_sampled(PLAN)
    in_place.add(PLAN, {0: 1e-3, 1: 2e-3, 3: 0.4e-3}, 3.7e-3, 3.7e-3)
    assert in_place.is_sampled(PLAN)
    assert not in_place.is_sampled(Plan((*CHOSEN[:3], OTHERS[2]), 0.0))
    assert not in_place.is_sampled(Plan((CHOSEN[2],), 0.0))


def test_a_speed_factor_scales_valid_kernels_only(in_place):
    costs = scaled_by_speed(in_place.costs, 1.5)
    assert costs["tvm--3"] == Cost(1.5e-3, 1.35e-3, pytest.approx(1.8e-3), (1.5e-3,))
    assert costs[HOST] == in_place.costs[HOST]
    assert costs["onednn--1"] == in_place.costs["onednn--1"]


def test_samples_of_one_kernel_are_averaged(in_place):
    key = "onednn--0"
    in_place.samples += [InContextSample(key, 1e-3, 1.1e-3), InContextSample(key, 1e-3, 1.3e-3)]
    assert in_place.corrected()[key].seconds == pytest.approx(1.2e-3)

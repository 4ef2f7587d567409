"""Only what could change the plan is tuned, and the most promising first."""

import pytest

from collage.backends.registry import available_backends
from collage.cost import Cost
from collage.graph.index_set import indices
from collage.measure.peaks import Peaks
from collage.search.enumeration import enumerate_function
from collage.search.problem import Option, Problem
from collage.search.shortest_path import find_plan
from collage.tuning.tuning_tasks import find_tuning_tasks, tunable_regions, tuned_options
from tests.backends.regions import convolutions

PEAKS = Peaks(1e9, 1e9, 1e9)
"""Bounds in microseconds are kilobytes, or FLOP / 1000."""


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    return convolutions(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def enumerated(function):
    return enumerate_function(function, available_backends(["onnxruntime", "tvm"]))


def costs_of(enumerated, seconds):
    """Cost of every candidate: `seconds` for each of its nodes."""
    return {
        option.key: Cost(sum(seconds[node] for node in indices(option.nodes)))
        for option in enumerated.problem.options
    }


def ops(function, nodes):
    return tuple(function.graph.nodes[index].op for index in indices(nodes))


def test_regions_with_one_product_can_be_tuned(function):
    regions = {ops(function, nodes) for nodes in tunable_regions(function)}
    assert {("Conv",), ("Conv", "Relu"), ("Conv", "Add")} <= regions
    assert all(region.count("Conv") == 1 for region in regions)


def test_what_is_at_its_bound_has_nothing_to_win(function, enumerated):
    costs = costs_of(enumerated, [1e-9] * 5)
    assert find_tuning_tasks(function, enumerated.problem, costs, PEAKS) == []


def test_one_region_of_each_product_is_ranked_by_its_gain(function, enumerated):
    costs = costs_of(enumerated, [5e-3, 1e-4, 2e-2, 1e-4, 1e-3])
    tasks = find_tuning_tasks(function, enumerated.problem, costs, PEAKS)
    products = [
        [index for index in indices(p.work.nodes) if ops(function, 1 << index) == ("Conv",)]
        for p in tasks
    ]
    assert products == [[2], [0]]
    assert tasks[0].gain_s > tasks[1].gain_s > 0
    assert all(p.work.backend == "tvm" and p.work.nodes in p.places for p in tasks)


def test_only_a_kernel_below_break_even_changes_the_plan(function, enumerated):
    costs = costs_of(enumerated, [5e-3, 1e-4, 2e-2, 1e-4, 1e-3])
    (first, *_) = find_tuning_tasks(function, enumerated.problem, costs, PEAKS)
    before = find_plan(enumerated.problem, costs).predicted_s
    key = (first.digest, "tvm", "tuned-x")
    options = [*enumerated.problem.options, *tuned_options(enumerated.problem, first, key)]
    problem = Problem(enumerated.problem.graph, options)
    for factor, is_better in ((0.99, True), (1.01, False)):
        tuned = {**costs, key: Cost(first.break_even_s * factor)}
        plan = find_plan(problem, tuned)
        assert (plan.predicted_s < before) is is_better
        assert any(option.key == key for option in plan.options) is is_better
    bound = find_plan(problem, {**costs, key: Cost(first.bound_s)}).predicted_s
    assert before - bound == pytest.approx(first.gain_s)


def test_small_gains_are_not_worth_a_trial(function, enumerated):
    costs = costs_of(enumerated, [1e-9, 1e-9, 1.05e-4, 1e-9, 10.0])
    assert find_tuning_tasks(function, enumerated.problem, costs, PEAKS) == []


def test_options_of_a_tuned_kernel_are_the_tvm_backends(function, enumerated):
    costs = costs_of(enumerated, [5e-3, 1e-4, 2e-2, 1e-4, 1e-3])
    (first, *_) = find_tuning_tasks(function, enumerated.problem, costs, PEAKS)
    (option,) = tuned_options(enumerated.problem, first, ("d", "tvm", "tuned-x"))
    own = {option.priority for option in enumerated.problem.options if option.backend == "tvm"}
    assert isinstance(option, Option)
    assert (option.nodes, option.backend, option.variant) == (first.places[0], "tvm", "tuned")
    assert {option.priority} == own

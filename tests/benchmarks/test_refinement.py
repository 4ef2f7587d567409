"""The simulation of refinement: the same numbers everywhere, and an optimum that no plan beats."""

import itertools

import pytest

from benchmarks.refinement import CONTEXTS, NeighboursOnly, SimulatedMachine, refine, rows
from collage.graph.index_set import first
from collage.pipeline.refinement import Refinement
from collage.search.problem import Plan

NODES = 5


def covers(machine):
    """Every plan of a short chain."""
    by_start = {}
    for option in machine.problem.options:
        by_start.setdefault(first(option.nodes), []).append(option)

    def after(start):
        if start == NODES:
            yield ()
        for option in by_start.get(start, ()):
            for others in after(option.nodes.bit_length()):
                yield (option, *others)

    return [Plan(options, 0.0) for options in after(0)]


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_optimum_is_that_of_brute_force(context):
    machine = SimulatedMachine(3, context, NODES)
    best_s = min(sum(machine.kernels_s(plan)) for plan in covers(machine))
    assert machine.optimum_s() == pytest.approx(best_s)


@pytest.mark.parametrize(
    ("context", "method"), list(itertools.product(CONTEXTS, (NeighboursOnly, Refinement)))
)
def test_refinement_repeats_and_is_never_below_the_optimum(context, method):
    machine = SimulatedMachine(1, context, 8)
    first_run, second_run = (refine(machine, method) for _ in range(2))
    assert first_run == second_run
    assert first_run.ratio >= 1
    assert first_run.assembled > 1


def test_the_table_compares_both_methods():
    alone, recombined = rows("changes", 2, 8)
    assert alone.startswith("| changes | neighbours alone |")
    assert "better" in recombined

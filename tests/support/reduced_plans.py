"""A search problem with a reduced variant of every node, for tests of error budgets."""

from collage.cost import Cost
from collage.search.problem import Option, Problem
from tests.support.search_oracle import chain

LENGTH = 6
ERRORS = (0.001, 0.02, 0.003, 0.004, 0.03, 0.002)
"""Error of each node in bf16; every node saves the same time."""


def problem_and_costs():
    options, costs = [], {}
    for node, error in enumerate(ERRORS):
        options.append(Option(1 << node, ("f32", node), "ov"))
        options.append(Option(1 << node, ("bf16", node), "ov", variant="bf16", precision="bf16"))
        costs["f32", node] = Cost(2e-3)
        costs["bf16", node] = Cost(1e-3, error=error)
    return Problem(chain(LENGTH), options), costs

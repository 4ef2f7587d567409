"""Time of the search itself on large functions: `python -m benchmarks.search_scaling`.

The functions are chains of equal residual blocks of ten nodes. Three graph backends have candidates for the
intervals between blocks, two backends for every single node and the fused pairs inside a block. Costs are
simulated: additive with a discount for long regions, and with noise by key.
"""

import random
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

from benchmarks.model_set import model_options
from benchmarks.results import machine, write_section
from collage.cost.cost import Cost
from collage.graph.dataflow import DataflowGraph, Node
from collage.graph.op_pattern import OpPatternKind
from collage.search import (
    AdditiveEstimator,
    Option,
    Problem,
    explain,
    find_plan,
    find_plans,
    search_lazily,
)

BLOCK = 10


def residual_chain(blocks: int) -> DataflowGraph:
    """Make `blocks` blocks: nine nodes in a row and an addition of the block's input."""
    nodes, last = [], "x"
    for index in range(blocks * BLOCK):
        skip = (f"v{index - BLOCK}" if index >= BLOCK else "x",) if index % BLOCK == 9 else ()
        kind = OpPatternKind.ELEMWISE
        nodes.append(
            Node(index, f"n{index}", "op", kind, inputs=(last, *skip), outputs=(f"v{index}",))
        )
        last = f"v{index}"
    return DataflowGraph(tuple(nodes), {}, ("x",), (last,))


def options(blocks: int, longest: int) -> Iterator[Option]:
    """Offer intervals of up to `longest` blocks, single nodes and pairs; keys repeat by structure."""
    for start in range(blocks):
        for length in range(1, min(longest, blocks - start) + 1):
            bits = ((1 << length * BLOCK) - 1) << start * BLOCK
            for priority, backend in enumerate(("onnxruntime", "openvino", "tensorrt"), start=2):
                yield Option(bits, (backend, length), backend, priority)
    for index in range(blocks * BLOCK):
        place = index % BLOCK
        for priority, backend in enumerate(("tvm", "onednn")):
            yield Option(1 << index, (backend, place, 1), backend, priority)
            if place < BLOCK - 1:
                yield Option(3 << index, (backend, place, 2), backend, priority)


def simulated_costs(problem: Problem, seed: int = 0) -> dict[Hashable, Cost]:
    """Give every key a cost of about 10 us a node; longer regions are up to a fifth cheaper."""
    costs = {}
    for key in sorted({option.key for option in problem.options}, key=repr):
        noise = random.Random(f"{seed} {key}").uniform(0.8, 1.2)
        size = problem.options_of(key)[0].size
        costs[key] = Cost(1e-6 + 1e-5 * size * noise * (0.8 + 0.2 / size))
    return costs


def timed(name: str, work: Callable[[], object]) -> str:
    """Run `work` once; return the table's row with its seconds."""
    start = time.monotonic()
    result = work()
    print(line := f"| {name} | {time.monotonic() - start:.2f} | {result} |", flush=True)
    return line


def lazily(problem: Problem, costs: dict[Hashable, Cost]) -> str:
    """Search lazily with the additive estimator; seeds are single nodes and single blocks."""

    def measure(keys: Sequence[Hashable]) -> dict[Hashable, Cost]:
        return {key: costs[key] for key in keys}

    seeds = [option.key for option in problem.ordered if option.size in (1, BLOCK)]
    estimator = AdditiveEstimator(problem)
    result = search_lazily(problem, measure, seeds=seeds, estimator=estimator, batch_size=16)
    best = find_plan(problem, costs).predicted_s
    excess = result.plan.predicted_s / best - 1
    return f"{result.measured} of {len(costs)} keys, {len(result.rounds)} rounds, {excess:+.2%}"


def rows(blocks: int, longest: int) -> list[str]:
    """Search one chain in every way; return the rows of its table."""
    graph = residual_chain(blocks)
    problem = Problem(graph, list(options(blocks, longest)), {"onnxruntime": 2e-6})
    costs = simulated_costs(problem)
    size = f"{len(graph)} nodes, {len(problem.options)} options, {len(costs)} keys"
    return [
        timed(f"{size}: best plan", lambda: f"{len(find_plan(problem, costs).options)} regions"),
        timed("its 8 best plans", lambda: f"{len(find_plans(problem, costs, 8))} plans"),
        timed("the regret of every option", lambda: f"{len(explain(problem, costs).regrets)}"),
        timed("lazy search", lambda: lazily(problem, costs)),
    ]


def main() -> None:
    parser = model_options(__doc__)
    arguments = parser.parse_args()
    table = [line for size in ((100, 100), (1000, 20)) for line in rows(*size)]
    write_section(
        arguments.output,
        "search",
        f"## The search alone\n\n`python -m benchmarks.search_scaling` on {machine()}. Costs are simulated; "
        "seconds of one thread.\n\n| what | seconds | result |\n|---|---|---|\n"
        + "\n".join(table)
        + "\n",
    )


if __name__ == "__main__":
    main()

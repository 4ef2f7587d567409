"""Refinement with recombination against neighbours alone, on a simulated machine.

    python -m benchmarks.refinement [--functions 60] [--nodes 24] [--output benchmarks]

No timing is involved: a function is a chain, its kernels have random costs on three toolchains, and a
kernel inside an executable takes longer or shorter by an amount that depends on the kernel before it.
Measured latencies scatter by `NOISE`. All numbers follow from the seed of the function, so the table is the
same on every machine. The loop is the product's (`collage.pipeline.refinement`) with the same number of
assembled plans; the simulation answers in place of the gate. The optimum in context is exact: a shortest
path over (node, kernel before it).
"""

import argparse
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import write_section
from collage.cost import Cost
from collage.graph.builder import GraphBuilder
from collage.graph.index_set import first
from collage.pipeline.plans import WholePlans
from collage.pipeline.refinement import Refinement
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import FunctionSearch
from collage.search.plan_selection import NamedPlan, select_plans
from collage.search.problem import Option, Plan, Problem
from collage.verify import KernelProfile, Latency
from collage.verify.comparison_rounds import RoundResults
from collage.verify.plan_executable import PlanExecutable

BACKENDS = ("first", "second", "third")
LONGEST = 4
"""Largest number of nodes of a region."""
ZONES = 4
"""Number of parts of a function with their own effects between toolchains."""
CONTEXTS = ("changes", "pairs")
"""What an effect depends on: a change of the toolchain within a zone, or the pair of kernels at random."""
NOISE = 0.01
"""Scatter of measured latencies, as a share."""
SECONDS = 3600.0
TABLE_HEADER = (
    "| context | method | mean above the optimum | worst | functions | plans assembled |\n"
    "|---|---|---|---|---|---|"
)


@dataclass
class SimulatedMachine:
    """A chain of nodes whose kernels depend on the kernel before.

    Attributes:
        seed: seed of all random numbers.
        context: one of `CONTEXTS`.
        nodes: number of nodes.
        problem: candidates: every interval of up to `LONGEST` nodes on every toolchain.
        isolated_s: isolated time of each kernel by option key, in seconds.
    """

    seed: int
    context: str
    nodes: int
    problem: Problem = field(init=False)
    isolated_s: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        builder, value = GraphBuilder(), "x"
        builder.input("x")
        for _ in range(self.nodes):
            value = builder.add("Relu", value)
        options = [
            Option((1 << end) - (1 << begin), f"{name}-{begin}-{end}", name, priority)
            for begin in range(self.nodes)
            for end in range(begin + 1, min(begin + LONGEST, self.nodes) + 1)
            for priority, name in enumerate(BACKENDS)
        ]
        self.problem = Problem(builder.build(), options)
        speeds = {
            (name, node): self._random("speed", name, node).uniform(0.6, 1.4)
            for name in BACKENDS
            for node in range(self.nodes)
        }
        self.isolated_s = {
            option.key: 1e-6
            + 1e-5
            * (1 - 0.05 * (option.size - 1))
            * sum(
                speeds[option.backend, node]
                for node in range(first(option.nodes), option.nodes.bit_length())
            )
            for option in options
        }

    def in_context_s(self, option: Option, before: Option | None) -> float:
        """Return the time of a kernel after another one, in seconds."""
        if before is None:
            return self.isolated_s[option.key]
        return self.isolated_s[option.key] * (1 + self._effect(option, before))

    def _effect(self, option: Option, before: Option) -> float:
        """Return the share by which the kernel before lengthens a kernel's time."""
        pair = self._random("pair", before.key, option.key)
        if self.context == "pairs":
            return pair.uniform(-0.25, 0.25)
        zone = first(option.nodes) * ZONES // self.nodes
        change = self._random("change", zone, before.backend, option.backend)
        is_same = before.backend == option.backend
        return pair.uniform(-0.05, 0.05) + change.uniform(*((-0.15, 0) if is_same else (0, 0.35)))

    def kernels_s(self, plan: Plan) -> list[float]:
        """Return the true time of each kernel of a plan, in seconds."""
        before = (None, *plan.options[:-1])
        return [
            self.in_context_s(option, earlier)
            for earlier, option in zip(before, plan.options, strict=True)
        ]

    def optimum_s(self) -> float:
        """Return the true latency of the best plan in context, in seconds."""
        best: dict[int, dict[Option | None, float]] = {0: {None: 0.0}}
        by_start: dict[int, list[Option]] = {}
        for option in self.problem.options:
            by_start.setdefault(first(option.nodes), []).append(option)
        for start in range(self.nodes):
            for option in by_start[start]:
                arrived = min(
                    seconds + self.in_context_s(option, before)
                    for before, seconds in best[start].items()
                )
                best.setdefault(option.nodes.bit_length(), {})[option] = arrived
        return min(best[self.nodes].values())

    def measured_s(self, plan: Plan, attempt: int) -> float:
        """Return a measured latency of a plan, in seconds."""
        noise = self._random("noise", attempt, *(option.key for option in plan.options))
        return sum(self.kernels_s(plan)) * (1 + noise.uniform(-NOISE, NOISE))

    def _random(self, *key: object) -> random.Random:
        return random.Random(repr((self.seed, *key)))


class SimulatedPlans(WholePlans):
    """Plans that the simulation runs in place of executables."""

    def assemble(self, plan: NamedPlan) -> PlanExecutable:
        self.named[plan.name] = plan
        return PlanExecutable(plan.name, Path(plan.name), plan.plan.predicted_s)

    def by_position(self, name: str, seconds: Mapping[str, float]) -> dict[int, float]:
        return {int(position): kernel_s for position, kernel_s in seconds.items()}


class NeighboursOnly(Refinement):
    """Refinement without recombination."""

    def _recombined(self, leader: str) -> list[Plan]:
        return []


@dataclass(frozen=True)
class RefinedPlan:
    """Result of one refinement: true latency over the optimum, and the number of assembled plans."""

    ratio: float
    assembled: int


def refine(
    machine: SimulatedMachine, method: Callable[[WholePlans, float], Refinement]
) -> RefinedPlan:
    """Run the loop of the gate with a method of refinement."""
    costs = {key: Cost(seconds) for key, seconds in machine.isolated_s.items()}
    named = select_plans(machine.problem, costs, 4)
    enumerated = EnumeratedFunction(None, (), machine.problem, {})  # type: ignore[arg-type]
    search = FunctionSearch(enumerated, costs, tuple(named), None)  # type: ignore[arg-type]
    plans = SimulatedPlans(search, None)  # type: ignore[arg-type]
    for plan in named:
        plans.assemble(plan)
    refinement, attempt = method(plans, SECONDS), 0
    leaders = list(plans.named)
    while True:
        attempt += 1
        latencies = {name: machine.measured_s(plans.named[name].plan, attempt) for name in leaders}
        order = sorted(latencies, key=lambda name: latencies[name])
        results = RoundResults(
            {name: Latency(latencies[name]) for name in order},
            {},
            lambda name: profile(machine, plans.named[name].plan),
        )
        proposed = refinement.propose_plans(results)
        if not proposed:
            break
        leaders = [*order[:6], *(plan.name for plan in proposed)]
    best_s = sum(machine.kernels_s(plans.named[order[0]].plan))
    return RefinedPlan(best_s / machine.optimum_s(), len(plans.named))


def profile(machine: SimulatedMachine, plan: Plan) -> KernelProfile:
    """Return the kernels' times inside the executable."""
    kernels = {str(place): seconds for place, seconds in enumerate(machine.kernels_s(plan))}
    return KernelProfile(sum(kernels.values()), kernels)


def rows(context: str, functions: int, nodes: int) -> list[str]:
    """Return the rows of both methods for one kind of context."""
    machines = [SimulatedMachine(seed, context, nodes) for seed in range(functions)]
    alone = [refine(machine, NeighboursOnly) for machine in machines]
    recombined = [refine(machine, Refinement) for machine in machines]
    pairs = list(zip(alone, recombined, strict=True))
    better = sum(second.ratio < first.ratio for first, second in pairs)
    worse = sum(second.ratio > first.ratio for first, second in pairs)
    return [
        f"| {context} | {name} | {statistics.mean(plan.ratio for plan in plans) - 1:.2%} "
        f"| {max(plan.ratio for plan in plans) - 1:.2%} | {comparison} "
        f"| {statistics.mean(plan.assembled for plan in plans):.1f} |"
        for name, plans, comparison in (
            ("neighbours alone", alone, ""),
            ("with recombination", recombined, f"{better} better, {worse} worse"),
        )
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--functions", type=int, default=60, help="functions of each kind of context"
    )
    parser.add_argument("--nodes", type=int, default=24, help="nodes of a function")
    parser.add_argument("--output", type=Path, help="folder of RESULTS.md")
    arguments = parser.parse_args()
    table = [TABLE_HEADER]
    for context in CONTEXTS:
        table += rows(context, arguments.functions, arguments.nodes)
    text = document(table, arguments.functions, arguments.nodes)
    print(text)
    if arguments.output:
        write_section(arguments.output, "refinement", text)


def document(table: list[str], functions: int, nodes: int) -> str:
    """Return the section of RESULTS.md."""
    return (
        "## Refinement\n\n"
        f"`python -m benchmarks.refinement`: {functions} simulated functions of {nodes} nodes for each "
        "context.\nA kernel's time depends on changes of the toolchain within a zone (changes), or on the "
        "pair with\nthe kernel before (pairs). Latencies are above those of the best plan in context.\n\n"
        + "\n".join(table)
        + "\n"
    )


if __name__ == "__main__":
    main()

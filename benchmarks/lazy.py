"""Does the lazy search find the plan that measuring everything finds?

    python -m benchmarks.lazy [--models ppocr_cls] [--most 3000]

The store holds what a cold compile measured (`make bench` leaves one a model). The best plan of those
costs is compared with the best plan after every other candidate has been measured too; costs that
were known stay. The second plan is the luckiest of many, so what it is better by is told twice: by the
costs that chose it, and by costs of both plans that are measured anew, in a store of their own. Models
with more than `--most` unmeasured candidates are left out: they take too long. With `--models` the rows
of the others stay as they are.
"""

import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.known_costs import KnownCosts, known_costs
from benchmarks.model_set import BenchmarkModel, chosen_models, model_options, store_of
from benchmarks.results import Facts, machine, revisions, write_rows
from collage.search.problem import Plan

HEADER = (
    "| model | unique candidates | measured by the lazy search | its plan us | best of all us | lost "
    "| lost, measured anew | seconds for the rest |\n|---|---|---|---|---|---|---|---|"
)
BATCH = 200
TIMES = 3
"""That a plan's kernels are measured anew."""


def measure(model: BenchmarkModel, found: KnownCosts, threads: int, most: int) -> Facts | None:
    """Measure what is unknown and return the facts of the model's row; None where it is too much."""
    work = found.enumerated.work
    missing = [key for key in work if key not in found.costs]
    if len(missing) > most:
        return None
    lazy = found.best()
    start = time.monotonic()
    for at in range(0, len(missing), BATCH):
        keys = missing[at : at + BATCH]
        measured = found.measurer.measure([work[key] for key in keys])
        found.costs.update(zip(keys, measured, strict=True))
    seconds = time.monotonic() - start
    best = found.best()
    differ = lazy.predicted_s != best.predicted_s
    anew = [lost_anew(model, lazy, best, threads) for _ in range(TIMES)] if differ else [0.0]
    return {
        "model": model.name, "unique": len(work), "measured": len(work) - len(missing),
        "lazy_s": lazy.predicted_s, "best_s": best.predicted_s, "lost_anew": statistics.median(anew),
        "seconds": seconds,
    }  # fmt: skip


def row(facts: Facts) -> str:
    """Format one table row."""
    lazy_s, best_s = facts["lazy_s"], facts["best_s"]
    return (
        f"| {facts['model']} | {facts['unique']} | {facts['measured'] / facts['unique']:.0%} "
        f"| {lazy_s * 1e6:.1f} | {best_s * 1e6:.1f} | {lazy_s / best_s - 1:.2%} "
        f"| {facts['lost_anew']:.2%} | {facts['seconds']:.0f} |"
    )


def lost_anew(model: BenchmarkModel, lazy: Plan, best: Plan, threads: int) -> float:
    """Measure the kernels of both plans in an empty store; return how much slower the first is."""
    plans = [set(plan.options) for plan in (lazy, best)]
    with TemporaryDirectory() as folder, known_costs(model, Path(folder), threads) as fresh:
        work = fresh.enumerated.work
        keys = [key for key in {one.key for plan in plans for one in plan} if key in work]
        measured = fresh.measurer.measure([work[key] for key in keys])
        fresh.costs.update(zip(keys, measured, strict=True))
        first, second = (fresh.best(plan.__contains__).predicted_s for plan in plans)
    return first / second - 1


def main() -> None:
    parser = model_options(__doc__)
    parser.add_argument("--most", type=int, default=3000)
    arguments = parser.parse_args()
    write_rows(arguments, "lazy", _measured(arguments), _document)


def _measured(arguments: Namespace) -> Iterator[Facts]:
    for model in chosen_models(arguments.work, arguments.models):
        with known_costs(model, store_of(model, arguments.work), arguments.threads) as found:
            facts = measure(model, found, arguments.threads, arguments.most)
        if facts is None:
            print(f"{model.name}: more than {arguments.most} candidates are left", flush=True)
        else:
            yield facts


def _document(found: list[Facts], arguments: Namespace) -> str:
    """Format the section. Its command measures these rows, which may come from several runs."""
    most = max(one["unique"] - one["measured"] for one in found)
    names = ",".join(one["model"] for one in found)
    return (
        f"## What the lazy search loses\n\n`python -m benchmarks.lazy --threads {arguments.threads} "
        f"--most {most} --models {names}` after `make bench`, on {machine()}{revisions(found)}.\n"
        "Costs that were known are of another moment than the rest: what the machine's pace did between\n"
        "them is in what is lost, and not in what is lost by costs that are measured anew.\n\n"
        + "\n".join([HEADER, *map(row, found)])
        + "\n"
    )


if __name__ == "__main__":
    main()

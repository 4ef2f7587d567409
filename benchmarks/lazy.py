"""Loss of the lazy search against a search with all costs measured.

    python -m benchmarks.lazy [--models ppocr_cls] [--most 3000]

The store contains the costs of a cold compile (`make bench` leaves one a model). The best plan by these
costs is compared with the best plan after measurement of all further candidates; known costs stay. The
second plan is the luckiest of many, so its gain is reported twice: by the costs that selected it, and by
new measurements of both plans in an empty store. Models with more than `--most` unmeasured candidates are
left out: they take too long. With `--models` the rows of further models stay unchanged.
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

LAZY_HEADER = (
    "| model | unique candidates | measured by the lazy search | its plan us | best of all us | lost "
    "| lost, measured anew | seconds for the rest |\n|---|---|---|---|---|---|---|---|"
)
LAZY_BATCH = 200
TIMES = 3
"""Number of repeated measurements of a plan's kernels."""


def measure(
    model: BenchmarkModel, model_costs: KnownCosts, threads: int, max_unknown: int
) -> Facts | None:
    """Measure the unknown costs and return the facts of the row; None above `max_unknown` costs."""
    work = model_costs.enumerated.work
    missing = [key for key in work if key not in model_costs.costs]
    if len(missing) > max_unknown:
        return None
    lazy = model_costs.best()
    start = time.monotonic()
    for at in range(0, len(missing), LAZY_BATCH):
        keys = missing[at : at + LAZY_BATCH]
        measured = model_costs.measurer.measure([work[key] for key in keys])
        model_costs.costs.update(zip(keys, measured, strict=True))
    seconds = time.monotonic() - start
    best = model_costs.best()
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
    """Measure the kernels of both plans in an empty store; return the relative loss of the first."""
    plans = [set(plan.options) for plan in (lazy, best)]
    with TemporaryDirectory() as folder, known_costs(model, Path(folder), threads) as fresh:
        work = fresh.enumerated.work
        keys = [key for key in {option.key for plan in plans for option in plan} if key in work]
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
        with known_costs(model, store_of(model, arguments.work), arguments.threads) as model_costs:
            facts = measure(model, model_costs, arguments.threads, arguments.most)
        if facts is None:
            print(f"{model.name}: more than {arguments.most} candidates are left", flush=True)
        else:
            yield facts


def _document(rows: list[Facts], arguments: Namespace) -> str:
    """Format the section with the command for its rows, which may come from several runs."""
    unmeasured = max(facts["unique"] - facts["measured"] for facts in rows)
    names = ",".join(facts["model"] for facts in rows)
    return (
        f"## What the lazy search loses\n\n`python -m benchmarks.lazy --threads {arguments.threads} "
        f"--most {unmeasured} --models {names}` after `make bench`, on {machine()}{revisions(rows)}.\n"
        "Costs that were known are of another moment than the rest: what the machine's speed did between\n"
        "them is in what is lost, and not in what is lost by costs that are measured anew.\n\n"
        + "\n".join([LAZY_HEADER, *map(row, rows)])
        + "\n"
    )


if __name__ == "__main__":
    main()

"""Progress on standard error, tables on standard output.

On a terminal a stage is a bar; elsewhere it is a plain line every two seconds, so that a log stays
readable. Names come from models, hence no markup and no control characters reach the terminal.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from collage.report.data import FunctionSummary, Summary, TuningFacts
from collage.report.formatting import MISSING, duration, printable

if TYPE_CHECKING:
    from collage.backends.base import Availability

PLAIN_EVERY_S = 2.0
STEADY = 0.03
"""Change of the machine's pace that is not worth a line."""


class Stage:
    """How far one stage is; `total` may be set, or changed, at any time."""

    def __init__(self, name: str, total: int | None, clock: Callable[[], float]) -> None:
        self.name, self.done, self.cached, self.invalid = name, 0, 0, 0
        self._total, self._clock = total, clock
        self.start_s = clock()
        self.changed: Callable[[], None] = lambda: None

    @property
    def total(self) -> int | None:
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total
        self.changed()

    def advance(self, n: int = 1, cached: int = 0, invalid: int = 0) -> None:
        """Count `n` more as done, `cached` and `invalid` of them being so."""
        self.done += n
        self.cached += cached
        self.invalid += invalid
        self.changed()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self.start_s

    @property
    def left_s(self) -> float | None:
        """Time left at the pace of what was not cached; None when that is not known."""
        worked = self.done - self.cached
        if self._total is None or worked <= 0:
            return None
        return self.elapsed_s / worked * max(0, self._total - self.done)

    def counts(self) -> str:
        """Write `12/40  3 cached  1 invalid`."""
        parts = []
        if self._total is not None:
            parts.append(f"{self.done}/{self._total}")
        elif self.done:
            parts.append(str(self.done))
        if self.cached:
            parts.append(f"{self.cached} cached")
        if self.invalid:
            parts.append(f"{self.invalid} invalid")
        return "  ".join(parts)


class Progress:
    """Shows stages; silent when `quiet`, bars when `console` is a terminal, plain lines else.

    Example:
        >>> with Progress(quiet=True).stage("measure", total=2) as stage:
        ...     stage.advance(cached=1)
    """

    def __init__(
        self,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet, self._clock = quiet, clock
        self._console = console or Console(stderr=True, highlight=False)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Show one stage until the block ends."""
        stage = Stage(printable(name), total, self._clock)
        if self._quiet:
            yield stage
            return
        with self._bar(stage) if self._console.is_terminal else self._plain(stage):
            yield stage
        self._say(f"{stage.name:<10} {duration(stage.elapsed_s):>8}  {stage.counts()}".rstrip())

    @contextmanager
    def _plain(self, stage: Stage) -> Iterator[None]:
        last_s = stage.start_s

        def changed() -> None:
            nonlocal last_s
            if self._clock() - last_s < PLAIN_EVERY_S:
                return
            last_s = self._clock()
            self._say(f"{stage.name:<10} {stage.counts()}{_left(stage)}")

        stage.changed = changed
        yield

    @contextmanager
    def _bar(self, stage: Stage) -> Iterator[None]:
        columns = (
            TextColumn("{task.description:<10}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counts]}", markup=False),
        )
        with Bar(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(stage.name, total=stage.total, counts="")

            def changed() -> None:
                counts = stage.counts() + _left(stage)
                bar.update(task, completed=stage.done, total=stage.total, counts=counts)

            stage.changed = changed
            changed()
            yield

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _left(stage: Stage) -> str:
    if stage.left_s is None:
        return ""
    minutes, seconds = divmod(round(stage.left_s), 60)
    return f"  {minutes}:{seconds:02} left"


def format_summary(summary: Summary) -> str:
    """Write latencies, the plan by backend, the gate and where the bundle is."""
    parts = [*(_latency_table(summary, one) for one in summary.functions), _plan_table(summary)]
    gate = "passed" if summary.gate.passed else "not passed"
    counts = summary.candidates
    facts = [
        ("gate", f"{gate}: {printable(summary.gate.reason)}" if summary.gate.reason else gate),
        *_verdict_facts(summary),
        ("candidates", f"{counts.enumerated} found, {counts.unique} different, "
         f"{counts.measured} measured, {counts.cached} cached, {counts.invalid} invalid"),
        *_precision_facts(summary),
        *([("tuning", tuning)] if (tuning := tuning_text(summary.tuning)) else []),
        ("bundle", printable(summary.bundle)),
        *_pace_facts(summary),
        *(("note", printable(note)) for note in summary.notes),
    ]  # fmt: skip
    parts.append("\n".join(f"{name:<12}{text}" for name, text in facts))
    return "\n\n".join(parts)


def _verdict_facts(summary: Summary) -> list[tuple[str, str]]:
    """Tell the verdict of each function, where there are several."""
    if len(summary.functions) == 1:
        return []
    return [("", f"{printable(one.function)}: {one.verdict}") for one in summary.functions]


def _pace_facts(summary: Summary) -> list[tuple[str, str]]:
    several = len(summary.functions) > 1
    return [
        ("pace", f"{printable(one.function)}: {pace}" if several else pace)
        for one in summary.functions
        if (pace := pace_text(one.pace))
    ]


def _precision_facts(summary: Summary) -> list[tuple[str, str]]:
    found = summary.precision
    if found is None:
        return []
    worst = max((error for error in found.errors.values() if error), default=0.0)
    text = (
        f"{found.reduced_regions} regions in less than fp32, error {worst:.2g} of {found.tolerance:g} "
        f"allowed, on {found.trials} inputs; {len(found.rejected)} plans beyond it"
    )
    beyond = [f"{printable(name)}: {printable(why)}" for name, why in found.excused.items()]
    notes = [*(printable(note) for note in found.notes), *(f"does not count: {b}" for b in beyond)]
    return [("precision", text), *(("", note) for note in notes)]


def tuning_text(tuning: TuningFacts) -> str:
    """Say what was tried and what it gave; "" where no kernel could be worth a trial."""
    if not tuning.trials and not tuning.tuned:
        return ""
    tried = f"{tuning.trials} trials on {tuning.kernels} kernels"
    if not tuning.tuned:
        return f"{tried}, none fast enough to be a candidate"
    gave = f"save {duration(tuning.saved_s)}" if tuning.saved_s else "change no plan"
    return f"{tried}, {tuning.tuned} tuned candidates {gave} (predicted)"


def pace_text(pace: float) -> str:
    """Say how the machine had changed by the last comparison; "" where it had not, to `STEADY`."""
    if abs(pace - 1) < STEADY:
        return ""
    change = f"{pace - 1:.0%} longer" if pace > 1 else f"{1 - pace:.0%} less"
    return (
        f"the plan most like this one took {change} in the last comparison than in the heats; "
        "predictions are at that pace"
    )


def print_summary(summary: Summary, file: TextIO | None = None) -> None:
    print(format_summary(summary), file=file or sys.stdout)


def _latency_table(summary: Summary, function: FunctionSummary) -> str:
    latency = function.latency
    rows = [("collage", duration(latency.collage_s), _times(function.speedup_over_best))]
    for name, seconds in sorted(
        latency.baselines.items(), key=lambda item: (item[1] is None, item[1] or 0, item[0])
    ):
        reason = printable(latency.baseline_reasons.get(name, "")) if seconds is None else ""
        rows.append((printable(name), duration(seconds), reason))
    several = len(summary.functions) > 1
    title = f"latency of {printable(function.function)}" if several else "latency"
    return _table((title, "median", ""), rows, right=(1,))


def _times(speedup: float | None) -> str:
    return f"{speedup:.2f}x the best baseline" if speedup is not None else ""


def _plan_table(summary: Summary) -> str:
    found: dict[str, list[float]] = {}
    for region in summary.plan:
        nodes, regions, seconds = found.setdefault(region.backend, [0, 0, 0.0])
        found[region.backend] = [
            nodes + len(region.nodes),
            regions + 1,
            seconds + (region.cost_s or 0),
        ]
    total = sum(seconds for _, _, seconds in found.values()) or 1.0
    rows = [
        (
            printable(name),
            f"{regions:.0f}",
            f"{nodes:.0f}",
            duration(seconds),
            f"{seconds / total:.0%}",
        )
        for name, (nodes, regions, seconds) in sorted(
            found.items(), key=lambda item: (-item[1][2], item[0])
        )
    ]
    header = ("plan", "regions", "nodes", "predicted", "share")
    return _table(header, rows, right=(1, 2, 3, 4))


def print_backends(
    rows: Sequence["tuple[str, str, str, Availability]"], file: TextIO | None = None
) -> None:
    """Print (name, style, device, availability) of every backend: versions, or why it is missing."""
    table = []
    for name, style, device, found in rows:
        versions = ", ".join(f"{library} {version}" for library, version in found.libraries.items())
        detail = versions if found.available else found.reason
        state = "available" if found.available else "missing"
        table.append((printable(name), style, device, state, printable(detail)))
    print(_table(("backend", "style", "device", "state", ""), table), file=file or sys.stdout)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    lines = [header, *(tuple(cell or (MISSING if i == 1 else "") for i, cell in enumerate(row))
                       for row in rows)]  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )

"""Progress on standard error, tables on standard output.

On a terminal a stage is a bar. Elsewhere it is a plain line every two seconds, for readable logs. Names
come from models, so markup and control characters are removed.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as ProgressBar

from collage.report.formatting import aligned_table, duration, printable
from collage.report.progress import Stage
from collage.report.summary import Summary
from collage.report.summary_text import format_summary

if TYPE_CHECKING:
    from collage.backends.base import Availability

PLAIN_EVERY_S = 2.0


class TerminalProgress:
    """Progress on a console: silent if `quiet`, bars on a terminal, plain lines elsewhere.

    Example:
        >>> with TerminalProgress(quiet=True).stage("measure", total=2) as stage:
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
        """Show one stage for the duration of a `with` block."""
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
        with ProgressBar(*columns, console=self._console, transient=True) as bar:
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
    if stage.remaining_s is None:
        return ""
    minutes, seconds = divmod(round(stage.remaining_s), 60)
    return f"  {minutes}:{seconds:02} left"


def print_summary(summary: Summary, file: TextIO | None = None) -> None:
    print(format_summary(summary), file=file or sys.stdout)


def print_backends(
    rows: Sequence["tuple[str, str, str, Availability]"], file: TextIO | None = None
) -> None:
    """Print the backends (name, style, device, availability) with versions or the reason."""
    table = []
    for name, style, device, availability in rows:
        versions = ", ".join(
            f"{library} {version}" for library, version in availability.libraries.items()
        )
        detail = versions if availability.available else availability.reason
        state = "available" if availability.available else "missing"
        table.append((printable(name), style, device, state, printable(detail)))
    print(
        aligned_table(("backend", "style", "device", "state", ""), table), file=file or sys.stdout
    )

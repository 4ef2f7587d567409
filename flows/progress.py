"""Progress of the pipeline in Prefect: lines of the run's log and an artifact for each phase.

The pipeline updates its counts often, in its own threads; calls of Prefect's API are rare, and it may
be slow or unreachable. So a separate thread reads the counts every few seconds and reports changes. It can
neither slow a measurement down nor fail a run.
"""

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from collage.report.formatting import duration, printable
from collage.report.progress import SilentProgress, Stage

CLOSE_S = 10.0
"""Limit of a task's wait for its last report, in seconds."""

logger = logging.getLogger("prefect.collage")


class _Phase:
    """One stage and its last report."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.seconds: float | None = None
        self.reported = ""
        self.artifact: UUID | None = None

    @property
    def line(self) -> str:
        stage = self.stage
        parts = [stage.name, stage.counts()]
        if self.ended:
            parts.append(f"done in {duration(self.seconds)}")
        elif stage.remaining_s:
            parts.append(f"{duration(stage.remaining_s)} left")
        return "  ".join(part for part in parts if part)

    @property
    def ended(self) -> bool:
        return self.seconds is not None

    @property
    def percent(self) -> float:
        """Share of the known total; a phase without a total is at 0 until its end."""
        if self.ended:
            return 100.0
        return min(99.0, 100.0 * self.stage.done / self.stage.total) if self.stage.total else 0.0


class FlowProgress(SilentProgress):
    """A `Progress` that reports to the run of its context; see `flow_progress`."""

    def __init__(self, subject: str, every_s: float) -> None:
        super().__init__()
        self._subject, self._every_s = printable(subject), every_s
        self._log = _run_logger()
        self._phases: list[_Phase] = []
        self._end = threading.Event()
        context = contextvars.copy_context()  # links the artifacts to the run
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        with super().stage(name, total) as stage:
            phase = _Phase(stage)
            self._phases.append(phase)
            try:
                yield stage
            finally:
                phase.seconds = stage.elapsed_s

    def close(self) -> None:
        """Report the end; wait at most `CLOSE_S` for the API."""
        self._end.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self._report()
        self._report()

    def _report(self) -> None:
        for phase in list(self._phases):
            line = phase.line
            if line == phase.reported or phase.reported.endswith("\n"):
                continue
            phase.reported = f"{line}\n" if phase.ended else line
            self._log.info("%s: %s", self._subject, line)
            self._show(phase, line)

    def _show(self, phase: _Phase, line: str) -> None:
        description = f"{self._subject}: {line}"
        try:
            if phase.artifact is None:
                created = create_progress_artifact(phase.percent, description=description)
                phase.artifact = created if isinstance(created, UUID) else None
            else:
                update_progress_artifact(phase.artifact, phase.percent, description)
        except Exception as error:  # noqa: BLE001 - the API may be unreachable; the next report tries again
            logger.debug("progress was not recorded: %s", error)


@contextmanager
def flow_progress(subject: str, every_s: float) -> Iterator[FlowProgress]:
    """Report the progress of a block to the current run."""
    progress = FlowProgress(subject, every_s)
    try:
        yield progress
    finally:
        progress.close()


def warn_run(text: str) -> None:
    """Write a warning to the log of the current run, e.g. what its Jobs wait for."""
    _run_logger().warning("%s", printable(text))


def _run_logger() -> "logging.Logger | logging.LoggerAdapter[logging.Logger]":
    try:
        return get_run_logger()
    except MissingContextError:
        return logger

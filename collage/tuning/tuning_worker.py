"""A process that tries schedules, one after the other: `python -m collage.tuning.tuning_worker`.

It builds and runs what it tries in itself, which takes a tenth of what TVM's own pools of processes
take, and is expendable like a measuring worker (`collage.measure.worker`): its parent watches its time
and memory, and has every finished trial. A schedule that computes wrong numbers is a failed trial; so is one
that loses a GPU's context, and with that the process ends.
"""

import math
import time
from typing import TYPE_CHECKING, BinaryIO

from collage.backends.base import TirKernel
from collage.measure.answers import pack_answer
from collage.measure.device import StickyError
from collage.measure.kernel_builder import FunctionWorkshop
from collage.measure.measurement_request import Work
from collage.measure.messages import (
    Answer,
    Ready,
    Refused,
    Setup,
    Trial,
    TuneTask,
    TuningEnded,
    read_request,
)
from collage.measure.timing import Limits
from collage.measure.worker import (
    KernelTimer,
    first_run,
    limit_address_space,
    limit_files,
    reason_of,
    serve,
    timer_of,
)

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms

QUICK = Limits(repeats=(3, 15), slow_repeats=2, slow_s=0.02, time_s=0.05)
"""A trial is compared with trials that differ by more than noise; the measurer is precise."""


class LostError(StickyError):
    """A trial has lost the device's context. What holds device memory must outlive it: nobody can free it."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.reason)
        self.trial = trial


class Child:
    """Serves requests until its pipe ends."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._open: dict[Work, Bench] = {}

    def run(self) -> None:
        setup = read_request(self._requests)
        if not isinstance(setup, Setup):
            return
        limit_files(setup)
        if setup.device == "cpu":
            limit_address_space(setup)
        try:
            workshop = FunctionWorkshop(setup)
            timer = timer_of(setup, workshop, QUICK)
        except Exception as error:
            self._send(Refused(reason_of(error)))
            return
        self._send(Ready())
        while isinstance(task := read_request(self._requests), TuneTask):
            self._send(self._tune(workshop, timer, setup.threads, task))

    def _tune(
        self, workshop: FunctionWorkshop, timer: KernelTimer, threads: int, task: TuneTask
    ) -> TuningEnded:
        try:
            if task.work not in self._open:
                self._open = {task.work: Bench(workshop, timer, threads, task)}
            return self._try(self._open[task.work], task.trials)
        except StickyError:
            raise
        except Exception as error:
            self._open.clear()
            return TuningEnded(reason_of(error))

    def _try(self, bench: "Bench", trials: int) -> TuningEnded:
        for _ in range(trials):
            try:
                found = bench.next_trial()
            except LostError as error:
                self._send(error.trial)
                raise
            if found is None:
                return TuningEnded("there are no more schedules")
            self._send(found)
        return TuningEnded()

    def _send(self, answer: Answer) -> None:
        self._answers.write(pack_answer(answer))
        self._answers.flush()


class Bench:
    """One region with its search and buffers."""

    def __init__(
        self, workshop: FunctionWorkshop, timer: KernelTimer, threads: int, task: TuneTask
    ) -> None:
        from collage.backends.common.tvm.lower import lower
        from collage.backends.cpu.tvm.legalize import legalizers
        from collage.frontend.region import region_constants, region_relax
        from collage.tuning.schedule_search import TraceSearch
        from collage.tuning.targets import target_on

        function, nodes = workshop.function(task.work.function), task.work.nodes
        forms = legalizers() if workshop.device == "cpu" else None
        lowered = lower(region_relax(function, nodes), forms)
        weights = tuple(function.weights[name] for name in region_constants(function, nodes))
        self._constants = (*weights, *lowered.constants)
        self._workshop, self._timer, self._work = workshop, timer, task.work
        target = target_on(workshop.device, threads)
        self._search = TraceSearch(lowered.function, target, threads, task.seed, task.known)
        self._known = dict(task.known)
        self._best_s = min(self._known.values(), default=math.inf)
        self._drawn: list[ms.MeasureCandidate] = []
        self._seconds: list[float] = []

    def next_trial(self) -> Trial | None:
        """Try one more schedule; None when there is none. Raises LostError."""
        from collage.tuning.schedule_search import trace_text

        start = time.monotonic()
        candidate = self._next_unknown()
        if candidate is None:
            return None
        try:
            seconds, reason = self._latency_s(candidate)
        except StickyError as error:
            took_s = time.monotonic() - start
            trace, reason = trace_text(candidate), reason_of(error)
            raise LostError(Trial(trace, math.inf, took_s, reason, lost=True)) from error
        self._seconds.append(seconds)
        self._best_s = min(seconds, self._best_s)
        return Trial(trace_text(candidate), seconds, time.monotonic() - start, reason)

    def _next_unknown(self) -> "ms.MeasureCandidate | None":
        """Return what is to be tried next; what is known already is told without a trial."""
        from collage.tuning.schedule_search import trace_text

        while True:
            if len(self._seconds) == len(self._drawn):
                if self._drawn:
                    self._search.tell(self._drawn, self._seconds)
                self._drawn, self._seconds = self._search.draw(), []
                if not self._drawn:
                    return None
            candidate = self._drawn[len(self._seconds)]
            seconds = self._known.get(trace_text(candidate))
            if seconds is None:
                return candidate
            self._seconds.append(seconds)

    def _latency_s(self, candidate: "ms.MeasureCandidate") -> tuple[float, str]:
        from collage.backends.common.tvm.lower import SYMBOL

        try:
            module = candidate.sch.mod
            kernel = TirKernel(module, SYMBOL, self._constants, self._workshop.device)
            prepared = self._workshop.with_buffers(self._work, kernel)
            wrong, _ = first_run(prepared)
            if wrong:
                return math.inf, wrong
            timing = self._timer.time(
                prepared.call, prepared.arguments, prepared.inputs, best_s=self._best_s
            )
        except StickyError:
            raise
        except Exception as error:
            return math.inf, reason_of(error)
        return timing.cost.seconds, ""


if __name__ == "__main__":
    serve(lambda requests, answers: Child(requests, answers).run(), __doc__)

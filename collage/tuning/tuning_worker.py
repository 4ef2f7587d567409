"""The tuning worker: a process that tries schedules (`python -m collage.tuning.tuning_worker`).

Schedules are built and run in the worker itself, in a tenth of the time of TVM's process pools. Like a
measuring worker (`collage.measure.worker`) it is supervised: its parent limits time and memory, and has
every finished trial. A schedule with wrong outputs is a failed trial. So is the loss of a GPU's context,
and the process ends after it.
"""

import math
import time
from typing import TYPE_CHECKING, BinaryIO

from collage.backends.base import TirKernel
from collage.frontend.region import region_constants, region_relax
from collage.graph.quantisation import is_quantised
from collage.masking import mask_numbers
from collage.measure.answers import pack_answer
from collage.measure.device import StickyError
from collage.measure.function_kernel_builder import FunctionKernelBuilder
from collage.measure.measurement_request import MeasurementRequest
from collage.measure.messages import (
    Answer,
    KernelRefused,
    Ready,
    Setup,
    Trial,
    TuneTask,
    TuningEnded,
    read_request,
)
from collage.measure.timing import TimingLimits
from collage.measure.worker import (
    KernelTimer,
    first_run,
    limit_address_space,
    limit_files,
    reason_of,
    serve,
    timer_of,
)
from collage.tuning.targets import target_on

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms

QUICK = TimingLimits(repeats=(3, 15), slow_repeats=2, slow_s=0.02, time_s=0.05)
"""TimingLimits of repetition for a trial: schedules differ by more than noise; the measurer is precise."""


class LostError(StickyError):
    """A trial lost the device's context. Device memory cannot be freed after it, so its owners stay alive."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.reason)
        self.trial = trial


class TuningWorker:
    """Serves requests until the end of its pipe."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests, self._answers = requests, answers
        self._open: dict[MeasurementRequest, TuningRunner] = {}

    def run(self) -> None:
        setup = read_request(self._requests)
        if not isinstance(setup, Setup):
            return
        limit_files(setup)
        if setup.device.limits_address_space:
            limit_address_space(setup)
        try:
            builder = FunctionKernelBuilder(setup)
            timer = timer_of(setup, builder, QUICK)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is the reason
            self._send(KernelRefused(reason_of(error)))
            return
        self._send(Ready())
        while isinstance(task := read_request(self._requests), TuneTask):
            self._send(self._tune(builder, timer, setup.threads, task))

    def _tune(
        self, builder: FunctionKernelBuilder, timer: KernelTimer, threads: int, task: TuneTask
    ) -> TuningEnded:
        try:
            if task.work not in self._open:
                self._open = {task.work: TuningRunner(builder, timer, threads, task)}
            return self._try(self._open[task.work], task.trials)
        except StickyError:
            raise
        except Exception as error:  # noqa: BLE001 - the answer has the reason
            self._open.clear()
            return TuningEnded(reason_of(error))

    def _try(self, runner: "TuningRunner", trials: int) -> TuningEnded:
        for _ in range(trials):
            try:
                trial = runner.next_trial()
            except LostError as error:
                self._send(error.trial)
                raise
            if trial is None:
                return TuningEnded("there are no more schedules")
            self._send(trial)
        return TuningEnded()

    def _send(self, answer: Answer) -> None:
        self._answers.write(pack_answer(answer))
        self._answers.flush()


class TuningRunner:
    """Runs the trials of one region; holds its search and buffers."""

    def __init__(
        self, builder: FunctionKernelBuilder, timer: KernelTimer, threads: int, task: TuneTask
    ) -> None:
        from collage.backends.common.tvm.lower import lower
        from collage.backends.cpu.tvm.legalize import legalizers
        from collage.tuning.schedule_search import TraceSearch

        function, nodes = builder.function(task.work.function), task.work.nodes
        quantised = is_quantised(function.graph, nodes)
        forms = None if builder.device.is_gpu else legalizers(quantised=quantised)
        lowered = lower(region_relax(function, nodes), forms)
        weights = tuple(function.weights[name] for name in region_constants(function, nodes))
        self._constants = (*weights, *lowered.constants)
        self._builder, self._timer, self._work = builder, timer, task.work
        target = target_on(builder.device, threads)
        self._search = TraceSearch(
            lowered.function, target, threads=threads, seed=task.seed, measured=task.measured
        )
        self._latencies = dict(task.measured)
        self._best_s = min(self._latencies.values(), default=math.inf)
        self._drawn: list[ms.MeasureCandidate] = []
        self._seconds: list[float] = []

    def next_trial(self) -> Trial | None:
        """Try one more schedule; None at the end of the space. Raises LostError."""
        from collage.tuning.schedule_search import trace_text

        start = time.monotonic()
        candidate = self._next_untried()
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

    def _next_untried(self) -> "ms.MeasureCandidate | None":
        """Return the next schedule without a latency; known latencies are used without a trial."""
        from collage.tuning.schedule_search import trace_text

        while True:
            if len(self._seconds) == len(self._drawn):
                if self._drawn:
                    self._search.tell(self._drawn, self._seconds)
                self._drawn, self._seconds = self._search.draw(), []
                if not self._drawn:
                    return None
            candidate = self._drawn[len(self._seconds)]
            seconds = self._latencies.get(trace_text(candidate))
            if seconds is None:
                return candidate
            self._seconds.append(seconds)

    def _latency_s(self, candidate: "ms.MeasureCandidate") -> tuple[float, str]:
        from collage.backends.common.tvm.lower import FUSED_SYMBOL

        try:
            module = candidate.sch.mod
            kernel = TirKernel(module, FUSED_SYMBOL, self._constants, self._builder.device)
            prepared = self._builder.with_buffers(self._work, kernel)
            wrong, _ = first_run(prepared)
            if wrong:
                return math.inf, wrong
            timing = self._timer.time(
                prepared.call, prepared.arguments, prepared.inputs, best_s=self._best_s
            )
        except StickyError:
            raise
        except Exception as error:  # noqa: BLE001 - the trial has the reason
            return math.inf, mask_numbers(reason_of(error))
        return timing.cost.seconds, ""


if __name__ == "__main__":
    serve(lambda requests, answers: TuningWorker(requests, answers).run(), __doc__)

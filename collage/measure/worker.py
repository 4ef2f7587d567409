"""The worker process: builds and times one candidate after the other (`python -m collage.measure.worker`).

The parent sets time and memory limits and replaces a worker killed by a candidate. A worker ends with its
parent (PR_SET_PDEATHSIG, and end of file on its pipe). Output of vendor libraries on stdout goes to
stderr; the pipes to the parent are other descriptors.
"""

import argparse
import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from collage.cost.cost import Cost
from collage.masking import mask_numbers
from collage.measure.answers import pack_answer
from collage.measure.device import DeviceTimer, StickyError
from collage.measure.edge_judgement import EdgeJudgement
from collage.measure.kernel_builder import KernelBuilder, Prepared, open_kernel_builder
from collage.measure.messages import (
    Answer,
    Built,
    KernelRefused,
    MeasurementOutcome,
    Ready,
    Setup,
    Task,
    read_request,
)
from collage.measure.timing import Timer, TimingLimits
from collage.runtime.child import die_with_parent, end_group_with_me

ADDRESS_SPACE_FACTOR = 2
ADDRESS_SPACE_SPARE = 32 << 30
REASON_LENGTH = 300
KernelTimer = Timer | DeviceTimer
OUT_OF_RESOURCES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class Worker:
    """Serves requests until its pipe ends."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._runs = False
        """Whether the kernel of the present task is built: then an error may show values of inputs."""
        self._has_samples = False

    def run(self) -> None:
        setup = read_request(self._requests)
        if not isinstance(setup, Setup):
            return
        self._has_samples = setup.has_samples
        limit_files(setup)
        if setup.device.limits_address_space:
            limit_address_space(setup)
        try:
            builder = open_kernel_builder(setup)
            timer = None if setup.builds else timer_of(setup, builder)
            ready = Ready(builder.boundary() if setup.measure_dispatch_overhead else None)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is the reason
            self._send(KernelRefused(reason_of(error)))
            return
        self._send(ready)
        while isinstance(task := read_request(self._requests), Task):
            self._send(self._outcome(builder, timer, task))

    def _outcome(
        self, builder: KernelBuilder, timer: KernelTimer | None, task: Task
    ) -> MeasurementOutcome:
        self._runs = False
        try:
            if timer is None:
                return self._build(builder, task)
            return self._measure(builder, timer, task)
        except StickyError:
            raise  # every later call fails: the process ends, and its last line is the reason
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the outcome has the reason
            reason = reason_of(error)
            if self._runs and self._has_samples:
                reason = mask_numbers(reason)
            return MeasurementOutcome(Cost.invalid(reason), durable=not is_infrastructure(error))

    def _build(self, builder: KernelBuilder, task: Task) -> MeasurementOutcome:
        start = time.monotonic()
        builder.build(task.work)
        build_s = time.monotonic() - start
        return MeasurementOutcome(Cost(build_s, build_s, build_s, build_s=build_s), built=True)

    def _measure(
        self, builder: KernelBuilder, timer: KernelTimer, task: Task
    ) -> MeasurementOutcome:
        start = time.monotonic()
        prepared = builder.prepare(task.work)
        self._runs = True
        wrong, error = first_run(prepared)
        edges = EdgeJudgement(wrong)
        if not wrong and prepared.judge_edges:
            edges = prepared.judge_edges()
        build_s = time.monotonic() - start + prepared.built_s
        built = prepared.built_s == 0
        if edges.defect:
            cost = Cost.invalid(edges.defect)
            return MeasurementOutcome(with_build_time(cost, build_s), built=built)
        self._send(Built())
        if read_request(self._requests) is None:
            raise SystemExit("the parent has gone")
        timing = timer.time(
            prepared.call,
            prepared.arguments,
            prepared.inputs,
            best_s=task.best_s,
            dispatch_overhead_s=task.dispatch_overhead_s,
            resolution_s=task.resolution_s,
        )
        last = prepared.call(*prepared.arguments) if prepared.allocates else None
        outputs = prepared.results(last)
        wrong, again = prepared.judge(outputs)
        cost = Cost.invalid(f"{wrong}, when called repeatedly") if wrong else timing.cost
        cost = replace(cost, error=max(error, again), hides_nan=edges.hides_nan)
        return MeasurementOutcome(
            with_build_time(cost, build_s), drifted=timing.drifted, built=built
        )

    def _send(self, answer: Answer) -> None:
        self._answers.write(pack_answer(answer))
        self._answers.flush()


def limit_files(setup: Setup) -> None:
    """Limit the files of this process and its compilers to the memory limit; allow no core dumps."""
    for kind, limit in ((resource.RLIMIT_FSIZE, setup.memory_bytes), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        soft_limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (soft_limit, hard))


def limit_address_space(setup: Setup) -> None:
    """Let runaway allocations fail; the parent enforces the real limit, of resident memory."""
    limit = setup.memory_bytes * ADDRESS_SPACE_FACTOR + ADDRESS_SPACE_SPARE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def timer_of(
    setup: Setup, builder: KernelBuilder, limits: TimingLimits | None = None
) -> KernelTimer:
    """Return the timer for the setup's device."""
    if setup.device.is_asynchronous:
        return DeviceTimer(builder.open_device(), limits or TimingLimits())
    return Timer(setup.cache_flush_bytes, builder.empty, limits, builder.wake)


def first_run(prepared: Prepared) -> tuple[str, float]:
    """Call the kernel once; return its defect in words, or "", and its error."""
    before = [array.copy() for array in prepared.inputs]
    returned = prepared.call(*prepared.arguments)
    for position, (old, new) in enumerate(zip(before, prepared.inputs, strict=True)):
        if not np.array_equal(old.reshape(-1).view(np.uint8), new.reshape(-1).view(np.uint8)):
            return f"it overwrites its input {position}", 0.0
    return prepared.judge(prepared.results(returned))


def reason_of(error: BaseException) -> str:
    """Return the last line of the toolchain's message, after the type of a foreign exception."""
    if isinstance(error, MemoryError):
        return f"out of memory: {error}".rstrip(": ")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    module = type(error).__module__
    named = text if module.startswith("collage.") else f"{type(error).__name__}: {text}"
    return named.rstrip(": ")[:REASON_LENGTH]


def is_infrastructure(error: BaseException) -> bool:
    """Tell whether the failure is the machine's, not the candidate's."""
    if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
        return True
    return "No space left on device" in str(error)


def with_build_time(cost: Cost, build_s: float) -> Cost:
    return replace(cost, build_s=build_s)


def serve(run: Callable[[BinaryIO, BinaryIO], None], description: str | None) -> None:
    """Run a worker process: `run` reads requests and writes answers until the end of file."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True, help="file descriptor to read")
    parser.add_argument("--answers", type=int, required=True, help="file descriptor to write")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    if os.getpgrp() == os.getpid():
        end_group_with_me()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(arguments.requests, "rb") as requests, os.fdopen(arguments.answers, "wb") as out:
        run(requests, out)
    os._exit(0)


if __name__ == "__main__":
    serve(lambda requests, answers: Worker(requests, answers).run(), __doc__)

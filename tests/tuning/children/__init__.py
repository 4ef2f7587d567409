"""Children of the tuner that finish two trials and then go wrong; one loses a GPU's context."""

import math
import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

from collage.measure.answers import pack_answer
from collage.measure.messages import Ready, Trial, TuneTask, TuningEnded, read_request
from collage.measure.worker import serve


def trace(number: int) -> str:
    """A trace like those of searches (without their imports, which take seconds)."""
    return f'[[["GetSBlock",[],["stage_{number}","fused"],["b0"]]],[]]'


TRIALS = (Trial(trace(1), 3e-6, 0.1), Trial(trace(2), 2e-6, 0.1))


def go_wrong(fault: Callable[[], object]) -> None:
    """Serve one task: two trials, then `how`."""

    def run(requests: BinaryIO, answers: BinaryIO) -> None:
        read_request(requests)
        answers.write(pack_answer(Ready()))
        answers.flush()
        read_request(requests)
        answers.write(b"".join(map(pack_answer, TRIALS)))
        answers.flush()
        fault()

    serve(run, None)


def lose() -> None:
    """Serve one task: a trial that works, and one that takes the device's context with it."""
    of_mine = trace(os.getpid())
    lost = Trial(trace(10 * os.getpid()), math.inf, 0.1, "an illegal address (700)", lost=True)

    def run(requests: BinaryIO, answers: BinaryIO) -> None:
        read_request(requests)
        answers.write(pack_answer(Ready()))
        answers.flush()
        task = read_request(requests)
        assert isinstance(task, TuneTask)
        trials = (Trial(of_mine, 1e-6, 0.1), lost)[: task.trials]
        end = (TuningEnded(),) if task.trials < 2 else ()
        answers.write(b"".join(map(pack_answer, (*trials, *end))))
        answers.flush()
        read_request(requests)

    serve(run, None)


def crash() -> None:
    os.abort()


def hang() -> None:
    time.sleep(600)


def eat() -> None:
    blocks = [bytearray(b"x") * (64 << 20) for _ in range(12)]
    time.sleep(600)
    sys.exit(len(blocks))


def be_killed() -> None:
    os.kill(os.getpid(), 9)

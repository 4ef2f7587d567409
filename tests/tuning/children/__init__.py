"""Children of the tuner that finish two trials and then go wrong."""

import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

from collage.measure.messages import Ready, Trial, pack_frame, read_request
from collage.measure.worker import serve

TRIALS = (Trial("[1]", 3e-6, 0.1), Trial("[2]", 2e-6, 0.1))


def go_wrong(how: Callable[[], object]) -> None:
    """Serve one task: two trials, then `how`."""

    def run(requests: BinaryIO, answers: BinaryIO) -> None:
        read_request(requests)
        answers.write(pack_frame(Ready()))
        answers.flush()
        read_request(requests)
        answers.write(b"".join(map(pack_frame, TRIALS)))
        answers.flush()
        how()

    serve(run, None)


def crash() -> None:
    os.abort()


def hang() -> None:
    time.sleep(600)


def eat() -> None:
    kept = [bytearray(b"x") * (64 << 20) for _ in range(12)]
    time.sleep(600)
    sys.exit(len(kept))


def be_killed() -> None:
    os.kill(os.getpid(), 9)

"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(ask: Callable[[], T], timeout_s: float = 20.0, *, every_s: float = 0.05) -> T:
    """Ask until the answer is true; return the last answer, which is false after the time limit."""
    end = time.monotonic() + timeout_s
    while not (answer := ask()) and time.monotonic() < end:
        time.sleep(every_s)
    return answer


def wait_for(ask: Callable[[], T], timeout_s: float = 20.0, *, every_s: float = 0.05) -> T:
    """Ask until the answer is true, and return it; AssertionError after the time limit."""
    answer = wait_until(ask, timeout_s, every_s=every_s)
    assert answer, "it did not happen in time"
    return answer

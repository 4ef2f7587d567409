"""Optional steps of a schedule: what TVM refuses is left out, and logged.

TVM's schedule errors share no base class with each other or with a rule's ValueError, so any exception of a
step is a refusal.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm import s_tir

log = logging.getLogger(__name__)

Rule = Callable[[s_tir.Schedule], None]


@contextmanager
def optional_step(step: str) -> Iterator[None]:
    """Leave out the rest of the block where TVM refuses it; `step` describes it in the log."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - TVM's errors share no base class
        lines = str(error).strip().splitlines()
        reason = lines[-1].strip() if lines else ""
        log.debug("TVM refuses to %s: %s: %s", step, type(error).__name__, reason)


def attempt(plan: s_tir.Schedule, rule: Rule) -> s_tir.Schedule:
    """Return the schedule after all of `rule`, or `plan` itself where TVM refuses a step of it."""
    trial = plan.copy()
    with optional_step(f"apply {getattr(rule, '__name__', 'a rule')}"):
        rule(trial)
        return trial
    return plan

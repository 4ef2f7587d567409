"""The watchdog: checks of idle executables, and the end of a stuck process.

An executable without a call for `every_s` seconds computes the bundle's golden data, so that readiness rests
on a recent result. A call beyond `STUCK_FACTOR` times its deadline does not end: the process exits, and its
supervisor starts another.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from containers.serving.engine import Engine, Executable, TooSlow

STUCK_FACTOR = 2.0
FAILURES = 3
"""Number of consecutive failed checks before the process exits."""

log = logging.getLogger(__name__)


class Watchdog:
    """Watches the executables of one engine; `give_up` ends the process.

    `every_s` may be infinite: then nothing but hanging calls is looked for.
    """

    def __init__(self, engine: Engine, every_s: float, give_up: Callable[[], None]) -> None:
        self._engine = engine
        self._every_s = every_s
        self._give_up = give_up
        self._failures = 0
        self.gave_up = False

    async def run(self) -> None:
        """Watch until cancelled, or given up."""
        pause_s = min(1.0, self._engine.call_s / 4, self._every_s / 4)
        while not self.gave_up:
            await asyncio.sleep(pause_s)
            if self._engine.longest_s() > STUCK_FACTOR * self._engine.call_s:
                self._end("a call does not end; the process does")
            elif (executable := self._engine.take_idle(self._every_s)) is not None:
                await self._check(executable)

    async def _check(self, executable: Executable) -> None:
        try:
            await self._engine.call(executable, executable.bundle.check)
        except TooSlow:
            return  # the engine's problem meanwhile
        except Exception as error:  # noqa: BLE001 - any failure of the check counts
            self._failures += 1
            executable.proven, executable.problem = time.monotonic(), str(error)
            log.error("the golden data is not computed any more: %s", error)
            if self._failures >= FAILURES:
                self._end(f"{FAILURES} checks failed; the process ends")
        else:
            self._failures, executable.problem = 0, ""

    def _end(self, reason: str) -> None:
        log.error("%s", reason)
        self.gave_up = True
        self._give_up()

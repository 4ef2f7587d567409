"""A server whose port outlives the signal to end.

Kubernetes takes an ending pod out of its Services while it sends SIGTERM, and proxies learn of it seconds
later: a port that closed at once would refuse what they still send. So after SIGTERM the server drains: it is
unready at once, accepts and answers for `drain_s`, and asks for the end of each connection. Then the port
closes, begun requests are answered, and the server ends. SIGINT or another SIGTERM ends the drain.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

_CLOSE = (b"connection", b"close")


class DrainingServer(uvicorn.Server):
    """A server of one port."""

    def __init__(
        self, config: uvicorn.Config, drain_s: float, on_drain: Callable[[], None]
    ) -> None:
        """Make a server.

        Args:
            config: configuration of the port.
            drain_s: time between SIGTERM and the end of the port, in seconds.
            on_drain: makes the application unready; called in a signal handler.
        """
        super().__init__(config)
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._closes_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first SIGTERM; end at any other signal."""
        if sig != signal.SIGTERM or self._closes_at is not None:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        self._closes_at = time.monotonic() + self._drain_s
        self._on_drain()

    async def on_tick(self, counter: int) -> bool:
        """Tell whether the port closes now; uvicorn asks ten times a second."""
        if self._closes_at is not None and time.monotonic() >= self._closes_at:
            self.should_exit = True
        ends = await super().on_tick(counter)
        headers = self.server_state.default_headers
        if self._closes_at is not None and _CLOSE not in headers:
            self.server_state.default_headers = [*headers, _CLOSE]
        return ends

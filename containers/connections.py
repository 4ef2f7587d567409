"""Limits of connections from untrusted clients: bounded in number and in time.

uvicorn bounds only the time between two requests. A client could send half a head, read no answer, or open
hundreds of idle connections, and hold them for ever. Here every connection is in one phase, and each phase
with a wait for the client has a fixed deadline, not extended by further bytes:

    head       nothing or a part of a request's head has come    `head_s`
    request    the application works; it bounds the body itself  none
    rest       answered, but the body still comes                `head_s`
    idle       between two requests                              `idle_s`
    closing    the last bytes go out                             `write_s`

An answer waiting for its reader has `write_s` too. A connection beyond the limit replaces the one without a
request for the longest time, so probes and new clients always get in; after these, connections with a slow
body are replaced. The kernel's queue is short, so descriptors are bounded as well.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 128
MAX_HEAD_BYTES = 16 << 10


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of one port; times in seconds."""

    connections: int = 512
    head_s: float = 10.0
    idle_s: float = 10.0
    write_s: float = 30.0


def http_config(
    application: Callable[..., Any], limits: ConnectionLimits, **options: Any
) -> uvicorn.Config:
    """Return the configuration of a server with bounded connections.

    Args:
        options: further options of `uvicorn.Config`.
    """
    protocol = type("LimitedProtocol", (BoundedProtocol,), {"limits": limits})
    return uvicorn.Config(
        application, http=cast(Any, protocol), ws="none",
        backlog=BACKLOG, h11_max_incomplete_event_size=MAX_HEAD_BYTES, log_config=None,
        access_log=False, server_header=False, timeout_keep_alive=cast(int, limits.idle_s), **options,
    )  # fmt: skip


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol on h11, with deadlines; `limits` are those of its port."""

    limits = ConnectionLimits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._phase = ""
        self._since = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def _watch(self) -> None:
        """Set the phase; a new phase sets its deadline."""
        phase, seconds = self._now()
        if phase == self._phase:
            return
        self._phase, self._since = phase, self.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _now(self) -> tuple[str, float | None]:
        if self.transport.is_closing():
            return "closing", self.limits.write_s
        if self.cycle is not None and not self.cycle.response_complete:
            return "request", None
        if self.conn.their_state is not h11.IDLE:
            return "rest", self.limits.head_s
        if self.cycle is None or self.conn.trailing_data[0]:
            return "head", self.limits.head_s
        return "idle", None  # uvicorn's own timer, timeout_keep_alive

    def _make_room(self) -> None:
        if len(self.connections) <= self.limits.connections:
            return
        candidates = [connection for connection in self.connections if connection is not self]
        idle = [connection for connection in candidates if connection._phase != "request"]  # type: ignore[union-attr]
        slow = idle or [connection for connection in candidates if connection.cycle.more_body]  # type: ignore[union-attr]
        oldest = min(slow, key=lambda connection: connection._since, default=self)  # type: ignore[union-attr]
        self.connections.discard(oldest)  # its end is seen in the loop's next turn
        oldest.transport.abort()

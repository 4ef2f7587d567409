"""The run dispatcher: starts accepted runs one at a time, with growing pauses and a limit of attempts.

A run is started through Prefect's HTTP API, so the receiver's image needs no Prefect. The idempotency key
guarantees one run across retries, restarts and lost answers: Prefect returns the existing run. The scheduled
reconcile finds runs without a start after the last attempt.
"""

import asyncio
import contextlib
import logging
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx

from containers.outbox import Outbox, Start

Facts = dict[str, str | int]
StartRun = Callable[[Start], Awaitable[None]]
"""Function that starts a run once. Raises StartError if it fails."""

PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
IDLE_S = 1.0

logger = logging.getLogger("collage.receiver")


class StartError(Exception):
    """The reason of a failed start, without secrets."""


class PrefectRunCreator:
    """Creates a run of one deployment of the Prefect server at `api_url`."""

    def __init__(
        self, client: httpx.AsyncClient, api_url: str, deployment: str, device: str = ""
    ) -> None:
        """Configure the deployment, and the device of its runs; "" leaves the device to the deployment."""
        self._client = client
        self._parameters = {"device": device} if device else {}
        self._api = api_url.rstrip("/")
        self._deployment = deployment

    async def __call__(self, start: Start) -> None:
        flow, _, name = self._deployment.partition("/")
        deployment = await self._ask("GET", f"/deployments/name/{quote(flow)}/{quote(name)}")
        await self._ask(
            "POST", f"/deployments/{deployment['id']}/create_flow_run",
            {
                "parameters": {"model": start.name, "version": start.version, **self._parameters},
                "idempotency_key": start.key,
                "state": {"type": "SCHEDULED"},
            },
        )  # fmt: skip

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, str]:
        try:
            answer = await self._client.request(method, self._api + path, json=body)
            answer.raise_for_status()
            return {"id": answer.json()["id"]}
        except httpx.HTTPStatusError as error:
            raise StartError(
                f"Prefect answered {error.response.status_code} to {method} {path}"
            ) from error
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise StartError(f"Prefect gave no answer to {path}: {type(error).__name__}") from error


class RunDispatcher:
    """Starts the due runs of the outbox; `count` gets each result: `started`, `retried`, `given_up`."""

    def __init__(
        self, outbox: Outbox, start: StartRun, attempts: int, count: Callable[[str], None]
    ) -> None:
        self._outbox = outbox
        self._start = start
        self._attempts = attempts
        self._count = count
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Signal a possibly due run."""
        self._wake.set()

    async def run(self) -> None:
        """Dispatch until cancelled; a run under way stays in the outbox."""
        while True:
            self._wake.clear()
            try:
                start = await asyncio.to_thread(self._outbox.due, time.time())
                if start is not None:
                    await self._try(start)
                    continue
            except sqlite3.Error as error:
                logger.error("the outbox fails", extra={"reason": str(error)})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), IDLE_S)

    async def _try(self, start: Start) -> None:
        facts: Facts = {
            "model": start.name,
            "version": start.version,
            "attempt": start.attempts + 1,
        }
        try:
            await self._start(start)
        except StartError as error:
            await self._failed(start, facts | {"reason": str(error)})
            return
        await asyncio.to_thread(self._outbox.done, start)
        self._count("started")
        logger.info("run started", extra=facts)

    async def _failed(self, start: Start, facts: Facts) -> None:
        if start.attempts + 1 >= self._attempts:
            await asyncio.to_thread(self._outbox.done, start)
            self._count("given_up")
            logger.error("run given up; the reconcile will find it", extra=facts)
            return
        pause_s = min(MAX_PAUSE_S, PAUSE_S * 2.0**start.attempts) * random.uniform(0.5, 1.0)
        await asyncio.to_thread(self._outbox.postpone, start, time.time() + pause_s)
        self._count("retried")
        logger.warning("run not started, will try again", extra=facts)

"""The webhook receiver: MLflow says that a version got the alias, and one run of a deployment starts.

    POST /webhooks/mlflow    202 a run will start            401 unsigned, forged or old
                             200 of no interest              409 replayed
                             400, 408, 413, 415 malformed    503 too many at once: MLflow tries again
    GET /healthz /readyz /metrics, on a port of their own: webhooks come from strangers

It decides from one small, verified body and a local file, and answers before any other request: the run is
started afterwards (`containers.run_dispatcher`), even after a kill in between (`containers.outbox`). Only
`model_version_alias.created` of the configured alias starts a run; Collage's own writes to the registry
(tags, and another alias) start none. The scheduled reconcile covers lost webhooks: it reads the registry.

    COLLAGE_RECEIVER__SECRET=... PREFECT_API_URL=... python -m containers.receiver
"""

import asyncio
import contextlib
import json
import logging
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from typing import Any

import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from collage.errors import CollageError
from collage.logs import configure_logs
from containers.connections import http_config
from containers.draining import DrainingServer
from containers.listening import open_socket
from containers.outbox import Busy, Outbox, Replayed, Start
from containers.prefect_client import prefect_client
from containers.receiver_settings import ReceiverSettings
from containers.run_dispatcher import PrefectRunCreator, RunDispatcher, StartRun
from containers.webhook_signature import SignatureRefused, verify

MAX_BODY = 64 << 10
_ANSWERS = {
    "accepted": 202, "ignored": 200, "forged": 401, "old": 401, "replayed": 409, "malformed": 400,
    "slow": 408, "too_large": 413, "bad_type": 415, "busy": 503,
}  # fmt: skip

logger = logging.getLogger("collage.receiver")


class Receiver:
    """The routes and their shared state."""

    def __init__(self, settings: ReceiverSettings, start: StartRun) -> None:
        self._settings = settings
        self._secrets = settings.secrets()
        self._outbox = Outbox(settings.journal, settings.max_starts)
        self.metrics = CollectorRegistry()
        self._webhooks = Counter(
            "collage_receiver_webhooks", "Webhooks by what became of them", ["result"],
            registry=self.metrics,
        )  # fmt: skip
        self._starts = Counter(
            "collage_receiver_starts", "Attempts to start a run", ["result"], registry=self.metrics
        )
        for result in _ANSWERS:
            self._webhooks.labels(result)
        for result in ("started", "retried", "given_up"):
            self._starts.labels(result)
        self._waiting = Gauge(
            "collage_receiver_waiting", "Runs that wait to be started", registry=self.metrics
        )
        self._waiting.set_function(self._outbox.waiting)
        self._dispatcher = RunDispatcher(self._outbox, start, settings.attempts, self._count_start)
        self._work: asyncio.Task[None] | None = None
        self._is_draining = False

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start runs while the server runs."""
        self._work = asyncio.create_task(self._dispatcher.run())
        try:
            yield
        finally:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._outbox.close()

    async def webhook(self, request: Request) -> Response:
        """Answer one delivery."""
        result, facts = await self._judge(request)
        self._webhooks.labels(result).inc()
        status = _ANSWERS[result]
        logger.log(
            logging.INFO if status < 300 else logging.WARNING, "webhook",
            extra={"result": result, "answer": status, **facts},
        )  # fmt: skip
        headers = {"Retry-After": "5"} if result == "busy" else {}
        return JSONResponse({"result": result}, status, headers)

    def drain(self) -> None:
        """Become unready; deliveries are accepted as before."""
        self._is_draining = True

    async def health(self, _: Request) -> Response:
        return PlainTextResponse("ok")

    async def ready(self, _: Request) -> Response:
        """Tell whether deliveries are accepted: the outbox answers and the dispatcher runs."""
        if self._is_draining:
            return PlainTextResponse("the receiver ends", 503)
        try:
            await asyncio.to_thread(self._outbox.waiting)
        except sqlite3.Error as error:
            return PlainTextResponse(f"the outbox fails: {type(error).__name__}", 503)
        if self._work is None or self._work.done():
            return PlainTextResponse("no runs are being started", 503)
        return PlainTextResponse("ok")

    async def show_metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.metrics), media_type=CONTENT_TYPE_LATEST)

    async def _judge(self, request: Request) -> tuple[str, dict[str, str]]:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "bad_type", {}
        try:
            body = await asyncio.wait_for(_read(request), self._settings.body_s)
            now_s = time.time()
            delivery = verify(request.headers, body, self._secrets, now_s)
        except TimeoutError:
            return "slow", {}
        except ClientDisconnect:
            return "malformed", {"reason": "the sender went away"}
        except _TooLarge:
            return "too_large", {}
        except SignatureRefused as refused:
            return refused.kind, {"reason": str(refused)}
        try:
            start = self._requested_run(json.loads(body), delivery.id)
        except (ValueError, KeyError, TypeError, RecursionError):
            return "malformed", {"delivery": delivery.id}
        facts = {"delivery": delivery.id}
        if start:
            facts |= {"model": start.name, "version": start.version}
        try:
            await asyncio.to_thread(self._outbox.take, delivery, start, now_s)
        except Replayed:
            return "replayed", facts
        except (Busy, sqlite3.Error) as error:
            return "busy", facts | {"reason": type(error).__name__}
        self._dispatcher.wake()
        return ("accepted" if start else "ignored"), facts

    def _requested_run(self, event: dict[str, Any], delivery: str) -> Start | None:
        """Return the requested run of an event, None for other events."""
        if (event["entity"], event["action"]) != ("model_version_alias", "created"):
            return None
        data = event["data"]
        name, version, alias = data["name"], data["version"], data["alias"]
        if not all(
            isinstance(field, str) and 0 < len(field) <= 1000 for field in (name, version, alias)
        ):
            raise ValueError
        if alias != self._settings.alias:
            return None
        return Start(start_key(self._settings, name, version, delivery=delivery), name, version)

    def _count_start(self, result: str) -> None:
        self._starts.labels(result).inc()


class _TooLarge(Exception):
    """The body is larger than any webhook."""


async def _read(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise _TooLarge
    return body


def start_key(settings: ReceiverSettings, name: str, version: str, *, delivery: str) -> str:
    """Return the idempotency key of a run, equal for every attempt, restart and replica.

    MLflow repeats a delivery with its id, and gives an alias that moved away and back a new one: the run of
    before may have failed. Prefect compares keys of all runs of a flow, those of other releases included.
    """
    deployment, device = settings.optimize_deployment, settings.device
    parts = [settings.registry, name, version, settings.alias, deployment, device, delivery]
    digest = sha256(json.dumps(parts).encode()).hexdigest()
    return f"webhook:{digest[:32]}"


def make_apps(receiver: Receiver) -> tuple[Starlette, Starlette]:
    """Return the ASGI applications of webhooks, and of probes and metrics."""
    webhooks = Starlette(
        routes=[Route("/webhooks/mlflow", receiver.webhook, methods=["POST"])],
        lifespan=receiver.lifespan,
    )
    status = [
        Route("/healthz", receiver.health),
        Route("/readyz", receiver.ready),
        Route("/metrics", receiver.show_metrics),
    ]
    return webhooks, Starlette(routes=status)


def main() -> int:
    """Run the receiver until SIGTERM."""
    configure_logs("receiver")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    try:
        settings = ReceiverSettings.load()
        start = PrefectRunCreator(
            prefect_client(settings),
            settings.prefect_api_url,
            settings.optimize_deployment,
            settings.device,
        )
        receiver = Receiver(settings, start)
        listeners = [
            open_socket(settings.host, port) for port in (settings.port, settings.status_port)
        ]
    except CollageError as error:
        logger.error(str(error))
        return error.exit_code
    except (OSError, sqlite3.Error) as error:
        logger.error(
            "the journal %s cannot be opened: %s. Mount a writable volume there, or set "
            "COLLAGE_RECEIVER__JOURNAL", settings.journal, error,
        )  # fmt: skip
        return 1
    asyncio.run(_serve(settings, receiver, listeners))
    return 0


async def _serve(
    settings: ReceiverSettings, receiver: Receiver, listeners: Sequence[socket.socket]
) -> None:
    """Serve both ports until SIGTERM; probes are answered until the last webhook has its answer."""
    webhooks, status = (
        http_config(app, settings.limits(), timeout_graceful_shutdown=10)
        for app in make_apps(receiver)
    )
    public = DrainingServer(webhooks, settings.drain_s, receiver.drain)
    private = _StatusServer(status)
    beside = asyncio.create_task(private.serve([listeners[1]]))
    await public.serve([listeners[0]])
    private.should_exit = True
    await beside


class _StatusServer(uvicorn.Server):
    """A server without signal handlers; the other server has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


if __name__ == "__main__":
    sys.exit(main())

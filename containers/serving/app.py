"""The HTTP application: routes, limits, and which error has which status.

400 what was sent is wrong, 404 another model, 408 a body that does not arrive, 413 a body that is too
big, 503 no place (with Retry-After). Every error is `{"error": "..."}`, as the protocol says.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from collage.errors import InputError
from collage.logs import log_context
from containers.serving.engine import Engine, Overloaded
from containers.serving.metrics import Metrics
from containers.serving.protocol import (
    HEADER_LENGTH,
    model_metadata,
    parse_request,
    render_answer,
)

log = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """`body_s` is how long a client may take to send `body_bytes`."""

    body_bytes: int = 64 << 20
    body_s: float = 30.0


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Server:
    """One model under one name."""

    def __init__(self, name: str, version: str, engine: Engine, limits: Limits) -> None:
        self.name = name
        self.version = version
        self._engine = engine
        self._limits = limits
        self._metrics = Metrics(name, version)

    def application(self) -> Starlette:
        """Make the application."""
        model = "/v2/models/{name}"
        routes = [
            Route("/v2", self._server),
            Route("/v2/health/live", self._healthy),
            Route("/v2/health/ready", self._healthy),
            Route("/metrics", self._show_metrics),
        ]
        for prefix in (model, model + "/versions/{version}"):
            routes += [
                Route(prefix, self._model),
                Route(f"{prefix}/ready", self._model_ready),
                Route(f"{prefix}/infer", self._infer, methods=["POST"]),
            ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refusal})

    async def _server(self, request: Request) -> Response:
        return JSONResponse(
            {"name": "collage", "version": self.version, "extensions": ["binary_tensor_data"]}
        )

    async def _healthy(self, request: Request) -> Response:
        """The socket opens only after the bundle was loaded and has computed its golden data."""
        return JSONResponse({"live": True, "ready": True})

    async def _show_metrics(self, request: Request) -> Response:
        places = self._engine.copies + self._engine.queue
        text = self._metrics.text(self._engine.admitted, places)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _model(self, request: Request) -> Response:
        self._check_name(request)
        return JSONResponse(model_metadata(self.name, self.version, self._engine.signatures))

    async def _model_ready(self, request: Request) -> Response:
        self._check_name(request)
        return JSONResponse({"name": self.name, "ready": True})

    async def _infer(self, request: Request) -> Response:
        start = time.perf_counter()
        self._check_name(request)
        with log_context(function=self.name):
            response = await self._answered(request)
            seconds = time.perf_counter() - start
            self._metrics.count(response.status_code, seconds)
            facts = {"status": response.status_code, "seconds": round(seconds, 6)}
            log.info("inference", extra=facts)
        return response

    async def _answered(self, request: Request) -> Response:
        try:
            with self._engine.place():
                return await self._compute(request)
        except Overloaded as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400)
        except _Refused as error:
            return JSONResponse({"error": str(error)}, error.status, {"Connection": "close"})
        except ClientDisconnect:
            return JSONResponse({"error": "the client went away"}, 499)
        except Exception:
            log.exception("an inference failed")
            return JSONResponse({"error": "the model failed; the server's log says why"}, 500)

    async def _compute(self, request: Request) -> Response:
        body = await self._body(request)
        length = request.headers.get(HEADER_LENGTH)
        signatures = self._engine.signatures
        asked = await run_in_threadpool(parse_request, body, length, signatures)
        outputs = await self._engine.run(asked.inputs)
        answer = await run_in_threadpool(render_answer, self.name, self.version, asked, outputs)
        if answer.header_length is None:
            return Response(answer.body, media_type="application/json")
        headers = {HEADER_LENGTH: str(answer.header_length)}
        return Response(answer.body, 200, headers, "application/octet-stream")

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body_bytes
        too_big = _Refused(413, f"the body has more than {limit} bytes")
        if int(request.headers.get("content-length", 0)) > limit:
            raise too_big
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        raise too_big
                    chunks.append(chunk)
        except TimeoutError:
            raise _Refused(408, f"the body took more than {self._limits.body_s:g} s") from None
        return b"".join(chunks)

    def _check_name(self, request: Request) -> None:
        name = request.path_params["name"]
        version = request.path_params.get("version", self.version)
        if (name, version) != (self.name, self.version):
            raise HTTPException(
                404, f"there is no model {name!r} of version {version!r} here: this is "
                f"{self.name!r} of version {self.version!r}"
            )  # fmt: skip


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)

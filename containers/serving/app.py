"""The HTTP application: routes, limits, and the status of each error.

400 invalid request, 404 another model, 408 incomplete body, 413 body too large, 415 unknown encoding of the
body, 503 no place or no memory (with Retry-After), 504 missed deadline of a call. Every error is
`{"error": "..."}`, as the protocol requires. A request has a place until its answer is complete, and a
reservation of memory until its client has the answer.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from collage.errors import InputError
from collage.logs import log_context
from collage.runtime.fallback import Fallback
from collage.runtime.manifest import Signature
from containers.serving.bodies import (
    Refused,
    discard_rest,
    encoding_of,
    read_body,
    too_large,
)
from containers.serving.encodings import accepts_gzip
from containers.serving.engine import Engine, Executable, TooSlow
from containers.serving.memory import (
    Memory,
    Overloaded,
    RequestCosts,
    Reservation,
    answering,
    known_outputs,
)
from containers.serving.metrics import Metrics
from containers.serving.protocol import (
    HEADER_LENGTH,
    Answer,
    json_length,
    model_metadata,
    parse_request,
    render_answer,
    requested_outputs,
)
from containers.serving.protocol import Request as InferenceRequest
from containers.serving.responses import ReservedResponse, compressed
from containers.serving.watchdog import Watchdog

log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        costs: limits of memory.
        memory: memory of all requests together.
        body_s: for the transfer of a body, in seconds.
        gzip_from: smallest JSON answer that is compressed for clients that accept it, in bytes; None is none.
    """

    costs: RequestCosts
    memory: Memory
    body_s: float = 30.0
    gzip_from: int | None = None


@dataclass(frozen=True)
class ServedModel:
    """A model of the protocol: an entry of the bundle, with its functions."""

    name: str
    entry: str
    signatures: tuple[Signature, ...]
    fallback: Fallback | None = None
    defaults: tuple[str, ...] = ()
    """Names of the inputs that requests may leave out."""


def served_models(name: str, engine: Engine) -> dict[str, ServedModel]:
    """Return the models of a bundle by name: `name` for the only entry, `name.ENTRY` for each of several.

    The protocol describes the inputs and outputs of a model, and those of entries differ: so each is a model.
    """
    several = len(engine.entries) > 1
    models = (
        ServedModel(
            f"{name}.{entry}" if several else name,
            entry,
            engine.signatures_of(entry),
            fallback=engine.fallback_of(entry),
            defaults=engine.defaults_of(entry),
        )
        for entry in engine.entries
    )
    return {model.name: model for model in models}


class Server:
    """One bundle: a model for each of its entries."""

    def __init__(
        self, name: str, version: str, engine: Engine, limits: Limits, *, watchdog: Watchdog
    ) -> None:
        self.name = name
        self.version = version
        self._engine = engine
        self._limits = limits
        self._watchdog = watchdog
        self._watching: asyncio.Task[None] | None = None
        self._is_draining = False
        self._models = served_models(name, engine)
        self._metrics = Metrics(name, version)
        # One thread: parsing holds the interpreter's lock anyway, and each thread keeps a heap.
        self._pool = ThreadPoolExecutor(1, "protocol")

    def application(self) -> Starlette:
        """Make the application."""
        model = "/v2/models/{name}"
        routes = [
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/metrics", self._show_metrics),
        ]
        for prefix in (model, model + "/versions/{version}"):
            routes += [
                Route(prefix, self._model),
                Route(f"{prefix}/ready", self._model_ready),
                Route(f"{prefix}/infer", self._infer, methods=["POST"]),
            ]
        return Starlette(
            routes=routes, exception_handlers={HTTPException: _refusal}, lifespan=self._lifespan
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._watching = asyncio.create_task(self._watchdog.run())
        try:
            yield
        finally:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def drain(self) -> None:
        """Become unready; requests are answered as before."""
        self._is_draining = True

    def _problem(self) -> str:
        """Return the reason against readiness; "" for a ready server."""
        if self._is_draining:
            return "the server ends; send requests to another one"
        if self._watching is None or self._watching.done():
            return self._engine.problem() or "nobody watches whether the model answers"
        return self._engine.problem()

    async def _server(self, request: Request) -> Response:
        return JSONResponse(
            {"name": "collage", "version": self.version, "extensions": ["binary_tensor_data"]}
        )

    async def _live(self, request: Request) -> Response:
        if self._watchdog.gave_up:
            return JSONResponse({"error": self._problem(), "live": False}, 503)
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        """Tell readiness: the socket opens after the first check with golden data; later calls decide."""
        if problem := self._problem():
            return JSONResponse({"error": problem, "ready": False}, 503)
        return JSONResponse({"live": True, "ready": True})

    async def _show_metrics(self, request: Request) -> Response:
        memory = self._limits.memory
        gauges = {
            "under_way": self._engine.admitted,
            "places": self._engine.copies + self._engine.queue,
            "memory_reserved_bytes": memory.reserved_bytes,
            "memory_bytes": memory.size_bytes,
            "ready": int(not self._problem()),
        }
        ways = {model.name: self._engine.counts_of(model.entry) for model in self._models.values()}
        text = self._metrics.text(gauges, ways)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _model(self, request: Request) -> Response:
        model = self._requested(request)
        return JSONResponse(
            model_metadata(
                model.name, self.version, model.signatures, model.fallback, optional=model.defaults
            )
        )

    async def _model_ready(self, request: Request) -> Response:
        model = self._requested(request)
        if problem := self._problem():
            return JSONResponse({"error": problem, "name": model.name, "ready": False}, 503)
        return JSONResponse({"name": model.name, "ready": True})

    async def _infer(self, request: Request) -> Response:
        start = time.perf_counter()
        model = self._requested(request)
        with log_context(function=model.name):
            response = await self._answered(request, model)
            seconds = time.perf_counter() - start
            self._metrics.count(model.name, response.status_code, seconds)
            facts = {"status": response.status_code, "seconds": round(seconds, 6)}
            log.info("inference", extra=facts)
        return response

    async def _answered(self, request: Request, model: ServedModel) -> Response:
        try:
            with self._engine.place():
                return await self._compute(request, model)
        except Overloaded as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except TooSlow as error:
            return JSONResponse({"error": str(error)}, 504)
        except InputError as error:
            return JSONResponse({"error": str(error)}, 400)
        except Refused as error:
            if error.status != 408:  # that one has had its time
                await discard_rest(request)
            return JSONResponse({"error": str(error)}, error.status, error.headers)
        except ClientDisconnect:
            return JSONResponse({"error": "the client went away"}, 499)
        except Exception:
            log.exception("an inference failed")
            return JSONResponse({"error": "the model failed; the server's log says why"}, 500)

    async def _compute(self, request: Request, model: ServedModel) -> Response:
        reservation = self._admit(request)
        try:
            inference_request = await self._parsed(request, model, reservation)
            executable = await self._executable(request)
            outputs = await self._engine.run(executable, inference_request.inputs, model.entry)
            self._reserve_answer(
                reservation,
                inference_request,
                [(output.size, output.nbytes) for output in outputs.values()],
            )
            render = partial(render_answer, model.name, self.version, inference_request, outputs)
            answer = await self._in_pool(render)
            if self._is_compressed(request, answer):
                answer = await self._in_pool(partial(compressed, answer))
            return ReservedResponse(answer, reservation)
        except BaseException:
            reservation.release()
            raise

    def _is_compressed(self, request: Request, answer: Answer) -> bool:
        """Tell whether to compress an answer; the bytes of tensors hardly shrink."""
        smallest = self._limits.gzip_from
        if smallest is None or answer.header_length is not None or len(answer.body) < smallest:
            return False
        return accepts_gzip(request.headers.get("accept-encoding"))

    def _admit(self, request: Request) -> Reservation:
        """Reserve the memory for reading and parsing the body; one with an encoding may get largest."""
        costs = self._limits.costs
        size = int(request.headers.get("content-length", costs.body_bytes))
        if size > costs.body_bytes:
            raise too_large(costs.body_bytes)
        if encoding_of(request):
            size = costs.body_bytes
        length = json_length(request.headers.get(HEADER_LENGTH), size)
        return self._limits.memory.reserve(costs.reading(size, length))

    async def _parsed(
        self, request: Request, model: ServedModel, reservation: Reservation
    ) -> InferenceRequest:
        limits = self._limits
        body = await read_body(request, limits.costs.body_bytes, limits.body_s, self._in_pool)
        length = request.headers.get(HEADER_LENGTH)
        signatures = model.signatures
        parse = partial(
            parse_request,
            body,
            length,
            signatures,
            limits.costs.json,
            defaults=model.defaults,
        )
        inference_request = await self._in_pool(parse)
        self._reserve_answer(
            reservation, inference_request, known_outputs(signatures, inference_request.inputs)
        )
        return inference_request

    def _reserve_answer(
        self,
        reservation: Reservation,
        inference_request: InferenceRequest,
        outputs: list[tuple[int, int]],
    ) -> None:
        """Change the reservation to the memory of the inputs (in the body, if binary) and the answer."""
        binary = all(requested_outputs(inference_request, {"": None}).values())
        inputs = sum(value.nbytes for value in inference_request.inputs.values())
        reservation.resize(2 * inputs + answering(outputs, binary=binary))

    async def _executable(self, request: Request) -> Executable:
        """Wait for an executable until the client disconnects."""
        if (executable := self._engine.take_idle()) is not None:
            return executable
        waiting = asyncio.create_task(self._engine.take())
        leaving = asyncio.create_task(_left(request))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            raise ClientDisconnect
        finally:
            leaving.cancel()
            waiting.cancel()

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _requested(self, request: Request) -> ServedModel:
        """Return the model of a request. Raises HTTPException: 404 for another one."""
        name = request.path_params["name"]
        version = request.path_params.get("version", self.version)
        model = self._models.get(name)
        if model is None or version != self.version:
            raise HTTPException(
                404, f"there is no model {name!r} of version {version!r} here: this is "
                f"{' and '.join(map(repr, self._models))} of version {self.version!r}"
            )  # fmt: skip
        return model


async def _left(request: Request) -> None:
    """Wait until the client closes its connection, after its body is read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)

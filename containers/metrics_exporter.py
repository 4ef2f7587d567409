"""The exporter of the runs' metrics for Prometheus: reads Prefect's API, and serves /metrics.

    GET /metrics    the series of containers.run_metrics
    GET /healthz    the process lives; the age of what it read is a series of its own

Runs are processes or pods that end before anybody could read them, and several workers may run them. So one
exporter asks Prefect which runs ended, wherever they ran. A run that ended while no exporter ran is not
counted: of two answers to a restart, the other one would count runs twice.

    PREFECT_API_URL=... python -m containers.metrics_exporter
"""

import asyncio
import contextlib
import dataclasses
import logging
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from collage.cluster.controller.environments import read_environments
from collage.errors import CollageError
from collage.logs import configure_logs
from collage.release_names import OPTIMIZE_DEPLOYMENT, RELEASE_PATTERN, released
from collage.settings import CollageSettings
from containers.connections import ConnectionLimits, http_config
from containers.listening import EVERY_ADDRESS, open_socket
from containers.prefect_client import prefect_client
from containers.run_metrics import RunMetrics
from containers.run_reader import ReadError, RunReader

OVERLAP = timedelta(minutes=10)
"""Overlap of two reads: Prefect learns of an end after the time that the run writes."""

logger = logging.getLogger("collage.metrics")


class MetricsSettings(CollageSettings):
    """Settings of the exporter: `COLLAGE_METRICS__PORT` and so on."""

    model_config = SettingsConfigDict(env_prefix="COLLAGE_METRICS__", populate_by_name=True)

    release: str = Field(
        default="",
        pattern=RELEASE_PATTERN,
        validation_alias=AliasChoices("COLLAGE_METRICS__RELEASE", "COLLAGE_RELEASE"),
        description="name of this installation among those of one Prefect server, as the flows have it",
    )
    deployment: str = Field(
        default="",
        pattern=r"^([^/]+/[^/]+)?$",
        validation_alias=AliasChoices("COLLAGE_METRICS__DEPLOYMENT", "COLLAGE_DEPLOYMENT"),
        description="Prefect deployment whose runs are counted, flow/name; empty: the release's",
    )
    prefect_api_url: str = Field(
        pattern=r"^https?://[^@]+$",
        validation_alias=AliasChoices("COLLAGE_METRICS__PREFECT_API_URL", "PREFECT_API_URL"),
        description="address of Prefect's API",
    )
    prefect_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("COLLAGE_METRICS__PREFECT_API_KEY", "PREFECT_API_KEY"),
        description="of Prefect Cloud",
    )
    prefect_auth: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("COLLAGE_METRICS__PREFECT_AUTH", "PREFECT_API_AUTH_STRING"),
        description="user:password of a Prefect server behind basic authentication",
    )
    environments_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices(
            "COLLAGE_METRICS__ENVIRONMENTS_FILE", "COLLAGE_ENVIRONMENTS_FILE"
        ),
        description="YAML with the measuring environments, whose series begin at zero",
    )
    host: str = Field(
        default=EVERY_ADDRESS, description="address to listen on; `::` is every IPv4 and IPv6 one"
    )
    port: int = Field(default=8081, ge=1, le=65535, description="port of /metrics")
    every_s: float = Field(default=30.0, gt=0, description="between two reads of Prefect's API")

    @property
    def optimize_deployment(self) -> str:
        """Deployment whose runs are counted, as `flow/name`."""
        return self.deployment or released(OPTIMIZE_DEPLOYMENT, self.release)

    def environment_names(self) -> list[str]:
        """Return the names of the measuring environments. Raises OptionError for a bad file."""
        return sorted(read_environments(self.environments_file)) if self.environments_file else []


class RunWatcher:
    """Reads Prefect's API again and again, and counts each ended run once."""

    def __init__(self, reader: RunReader, metrics: RunMetrics) -> None:
        self._reader = reader
        self._metrics = metrics
        self._read_until: datetime | None = None
        self._counted: set[tuple[str, str]] = set()

    async def read(self) -> None:
        """Count what ended since the read before; the first read only learns what had ended."""
        now = datetime.now(UTC)
        runs = await self._reader.ended_since((self._read_until or now) - OVERLAP)
        # A run that is tried again ends a second time.
        ends = {(run.id, run.ended): run for run in runs}
        if self._read_until is not None:
            for end in ends.keys() - self._counted:
                records = await self._reader.records(ends[end])
                self._metrics.count(dataclasses.replace(ends[end], records=records))
                self._counted.add(end)
        counts, oldest_s = await self._reader.present(now)
        self._metrics.show(counts, oldest_s, now.timestamp())
        self._counted = set(ends)
        self._read_until = now

    async def run(self, every_s: float) -> None:
        """Read until cancelled; a failed read is logged, counted, and made good by the next one."""
        while True:
            began_s = time.monotonic()
            try:
                await self.read()
            except (ReadError, LookupError, TypeError, ValueError) as error:
                # The latter three: an answer of another form, e.g. of a proxy's page.
                self._metrics.count_failure()
                logger.warning("runs were not read", extra={"reason": f"{error!r}"})
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - began_s)))


def make_app(metrics: RunMetrics, watcher: RunWatcher, every_s: float) -> Starlette:
    """Return the ASGI application; it reads while it is served."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        work = asyncio.create_task(watcher.run(every_s))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def show(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    routes = [Route("/metrics", show), Route("/healthz", health)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> int:
    """Run the exporter until SIGTERM."""
    configure_logs("metrics")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    try:
        settings = MetricsSettings.load()
        metrics = RunMetrics(settings.environment_names())
        listener = open_socket(settings.host, settings.port)
    except CollageError as error:
        logger.error(str(error))
        return error.exit_code
    client, deployment = prefect_client(settings), settings.optimize_deployment
    reader = RunReader(client, settings.prefect_api_url, deployment)
    app = make_app(metrics, RunWatcher(reader, metrics), settings.every_s)
    config = http_config(app, ConnectionLimits(), timeout_graceful_shutdown=5)
    uvicorn.Server(config).run([listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())

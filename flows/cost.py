"""The cost of a run: what its Jobs used, priced as the operator says, and the limits of it.

The records in the store are the source (`collage.store.usage`): of Jobs, the cluster's service writes them;
the environment `local` counts the wall time of its steps here, with the threads and the GPU of a kernel.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from uuid import uuid4

from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict

from collage.errors import StoreError
from collage.pipeline.request import CompileRequest
from collage.runtime.target import Target
from collage.store import open_store
from collage.store.usage import (
    BUILD_SUFFIX,
    Usage,
    UsageRecord,
    WorkOwner,
    list_run_usage,
    record_usage,
    today,
    usage_by_place,
)
from collage.store.usage_limits import LimitCheck
from flows.environments import node_prices
from flows.settings import LOCAL, FlowSettings, flow_settings
from flows.teams import run_limits

logger = logging.getLogger("prefect.collage")


class RunCost(BaseModel):
    """What one run used in one environment.

    Attributes:
        node_seconds: seconds of nodes: the time of each pod, of retried and killed ones too.
        cpu_seconds: the same, times the processors of the pod.
        gpu_seconds: the same, times the GPUs of the pod.
        price: price in the operator's currency; None where a price is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    price: float | None = None

    def __add__(self, other: "RunCost") -> "RunCost":
        prices = (self.price, other.price)
        return RunCost(
            node_seconds=self.node_seconds + other.node_seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            gpu_seconds=self.gpu_seconds + other.gpu_seconds,
            price=None if None in prices else sum(price or 0.0 for price in prices),
        )


def work_owner(model: str, version: str, team: str) -> WorkOwner:
    """Return the present run as the owner of work for a version."""
    return WorkOwner(run=str(flow_run.id or ""), model=model, version=version, team=team)


def require_room(owner: WorkOwner, since: date, settings: FlowSettings) -> None:
    """Raise LimitError where a limit is reached; nothing is read without a limit."""
    if limits := run_limits(owner.team, settings):
        LimitCheck(open_store(settings.store, writes=False), owner, limits, since).require_room()


def run_cost(
    owner: WorkOwner, environment: str, since: date, settings: FlowSettings
) -> RunCost | None:
    """Return the cost of the owner's run in an environment; None where the store does not answer."""
    store = open_store(settings.store, writes=False)
    try:
        entries = list_run_usage(store, owner, since, today())
    except StoreError:  # the run's own result says that the store is away
        return None
    prices = node_prices(settings)
    places = usage_by_place(entries)
    costs = [
        priced(usage, prices.get(place))
        for place, usage in places.items()
        if place.removesuffix(BUILD_SUFFIX) == environment
    ]
    return sum(costs, priced(Usage(), prices.get(environment)))


def priced(usage: Usage, price_per_node_second: float | None) -> RunCost:
    """Return the cost of a usage at a price; None is an unknown price."""
    price = None if price_per_node_second is None else usage.node_s * price_per_node_second
    return RunCost(
        node_seconds=usage.node_s, cpu_seconds=usage.cpu_s, gpu_seconds=usage.gpu_s, price=price
    )


@contextmanager
def counted(owner: WorkOwner, request: CompileRequest, step: str, *, since: date) -> Iterator[None]:
    """Count a step of the environment `local`, a failed one too; others count their Jobs.

    Args:
        owner: the run.
        request: its request for an environment.
        step: name of the step.
        since: day of the run's start, UTC.

    Raises:
        LimitError: a limit is reached before the step.
    """
    if request.environment != LOCAL:
        yield
        return
    require_room(owner, since, flow_settings())
    start_s = time.monotonic()
    try:
        yield
    finally:
        _record_step(owner, request, step, time.monotonic() - start_s)


def _record_step(owner: WorkOwner, request: CompileRequest, step: str, seconds: float) -> None:
    usage = Usage.of(seconds, request.threads, float(Target(request.device).is_gpu))
    record = UsageRecord(
        owner, LOCAL, work=uuid4().hex, usage=usage, ended=today(), details={"kind": step}
    )  # fmt: skip
    try:
        record_usage(open_store(flow_settings().store, writes=False), record)
    except StoreError as error:
        logger.warning("the usage of the %s was not recorded: %s", step, error)

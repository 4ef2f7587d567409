"""Artifacts and events of a run in Prefect. A failed record never fails the run."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.events import emit_event

from collage.pipeline.request import CompileRequest, SearchResult
from collage.store import BlobDigest, open_store
from collage.store.blobs import blob_key
from flows.markdown import plan_rows, result_rows, summary_markdown
from flows.names import artifact_key, model_resource
from flows.results import Outcome
from flows.settings import release_name

logger = logging.getLogger("prefect.collage")

P = ParamSpec("P")


def recorded(record: Callable[P, object]) -> Callable[P, None]:
    """Return `record` with failures as a warning in the log."""

    @functools.wraps(record)
    def attempt(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        # Prefect's API may be unreachable: the run continues without the record.
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "%s was not recorded: %s: %s", record.__name__, type(error).__name__, error
            )

    return attempt


@recorded
def plan_ready(model: str, request: CompileRequest, facts: SearchResult) -> object:
    """Record the best plans of one function, and emit the event of its plan."""
    best = facts.plans[0] if facts.plans else None
    payload = {
        "environment": request.environment,
        "function": facts.function,
        "predicted_s": best.predicted_s if best else None,
        "measured": facts.measured,
        "cached": facts.cached,
    }
    release = release_name()
    emit_event("collage.plan.ready", model_resource(model, release), payload=payload)
    return create_table_artifact(
        plan_rows(facts),
        key=artifact_key("alternatives", model, request.environment, facts.function, release),
        description=f"Best plans of {facts.function} for {request.environment}, as predicted",
    )


@recorded
def verdict(model: str, version: str, outcome: Outcome) -> None:
    """Record the result of one environment, and emit the event of its bundle."""
    event = "collage.artifact.published" if outcome.accepted else "collage.artifact.rejected"
    payload = {
        "version": version,
        "environment": outcome.environment,
        "status": outcome.status,
        "bundle": outcome.bundle,
        "alias": outcome.alias,
        "speedup": outcome.speedup,
        "reason": outcome.reason,
        "cost": outcome.cost.model_dump() if outcome.cost else None,
    }
    if outcome.moved or not outcome.accepted:
        emit_event(event, model_resource(model, release_name()), payload=payload)
    create_markdown_artifact(
        summary_markdown(model, version, outcome),
        key=artifact_key("summary", model, outcome.environment, release_name()),
        description=f"{model} {version} for {outcome.environment}: {outcome.status}",
    )


@recorded
def results(model: str, version: str, outcomes: Sequence[Outcome]) -> object:
    """Record the results of all environments as a table, once for a run: metrics count its rows."""
    return create_table_artifact(
        result_rows(outcomes),
        key=artifact_key("results", model, release_name()),
        description=f"Results of {model} {version} by environment",
    )


@recorded
def report_link(
    model: str, environment: str, store: str, report: str, *, link_s: float = 0.0, base: str = ""
) -> object:
    """Link the HTML report, an object in the store, which may be private (see `report_url`)."""
    return create_link_artifact(
        report_url(store, report, link_s=link_s, base=base),
        link_text="report.html",
        key=artifact_key("report", model, environment, release_name()),
        description=f"Why each choice won, for {environment}",
    )


def report_url(address: str, digest: str, *, link_s: float = 0.0, base: str = "") -> str:
    """Return the URL of a report in the store at `address`, without the address's settings.

    Args:
        address: the store's address.
        digest: digest of the report.
        link_s: life of a signed link, in seconds, with which a browser opens it; 0 for no signature.
        base: address of a gateway to the store, which comes first; "" without.
    """
    key = blob_key(BlobDigest(digest))
    if base:
        return f"{base.rstrip('/')}/{key}"
    store = open_store(address, writes=False)
    if link_s:
        return store.link(key, link_s, "text/html")
    scheme = "" if "://" in store.url else "file://"
    return f"{scheme}{store.url}/{key}"

"""What Prefect shows of a run: artifacts and events. A record that fails never fails the run."""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.events import emit_event

from collage.pipeline.request import CompileRequest, SearchFacts
from collage.store import BlobDigest, open_store
from collage.store.blobs import blob_key
from flows.markdown import plan_rows, summary_markdown
from flows.names import artifact_key, model_resource
from flows.results import Outcome

logger = logging.getLogger("prefect.collage")

P = ParamSpec("P")


def recorded(record: Callable[P, object]) -> Callable[P, None]:
    """Let failures of `record` be a line in the log and nothing more."""

    @functools.wraps(record)
    def attempt(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception as error:  # Prefect's API may be away: the run goes on without the record
            logger.warning(
                "%s was not recorded: %s: %s", record.__name__, type(error).__name__, error
            )

    return attempt


@recorded
def plan_ready(model: str, request: CompileRequest, found: SearchFacts) -> object:
    """Show the best alternatives of one function, and tell that its plan is ready."""
    best = found.plans[0] if found.plans else None
    payload = {
        "environment": request.environment,
        "function": found.function,
        "predicted_s": best.predicted_s if best else None,
        "measured": found.measured,
        "cached": found.cached,
    }
    emit_event("collage.plan.ready", model_resource(model), payload=payload)
    return create_table_artifact(
        plan_rows(found),
        key=artifact_key("alternatives", model, request.environment, found.function),
        description=f"Best plans of {found.function} for {request.environment}, as predicted",
    )


@recorded
def verdict(model: str, version: str, outcome: Outcome) -> None:
    """Show what came of one environment, and tell whether its bundle is used."""
    event = "collage.artifact.published" if outcome.accepted else "collage.artifact.rejected"
    payload = {
        "version": version,
        "environment": outcome.environment,
        "status": outcome.status,
        "bundle": outcome.bundle,
        "alias": outcome.alias,
        "speedup": outcome.speedup,
        "reason": outcome.reason,
    }
    if outcome.moved or not outcome.accepted:
        emit_event(event, model_resource(model), payload=payload)
    create_markdown_artifact(
        summary_markdown(model, version, outcome),
        key=artifact_key("summary", model, outcome.environment),
        description=f"{model} {version} for {outcome.environment}: {outcome.status}",
    )


@recorded
def report_link(model: str, environment: str, store: str, report: str) -> object:
    """Link the HTML report: it is an object in the store, which may be private."""
    return create_link_artifact(
        blob_url(store, report),
        link_text="report.html",
        key=artifact_key("report", model, environment),
        description=f"Why each choice won, for {environment}",
    )


def blob_url(address: str, digest: str) -> str:
    """Return where a blob of the store at `address` lies, without the address's settings."""
    url = open_store(address, writes=False).url
    scheme = "" if "://" in url else "file://"
    return f"{scheme}{url}/{blob_key(BlobDigest(digest))}"

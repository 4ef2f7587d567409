"""Names of aliases in the store, concurrency limits, artifacts and resources."""

import re

from collage.release_names import released
from collage.store.aliases import slug

OPTIMIZED = "optimized"
RECONCILE_QUEUE = "reconcile"
"""Queue of reconcile in the work pool; prefect.yaml names it too."""

REJECTED = "Rejected"
"""State of a run with an unusable model; a repetition does not help."""

OVER_LIMIT = "OverLimit"
"""State of a run that a daily limit of cost stopped; it may start again when the limit allows."""


def limit_name(environment: str, release: str) -> str:
    """Return the name of an environment's concurrency limit.

    >>> limit_name("cpu", ""), limit_name("cpu", "models.collage")
    ('collage-cpu', 'collage-cpu@models.collage')
    """
    return released(f"collage-{environment}", release)


def version_alias(model: str, version: str, environment: str) -> str:
    """Return the alias of one version's bundle: `resnet18/3/local`."""
    return "/".join(map(slug, (model, version, environment)))


def optimized_alias(model: str, environment: str) -> str:
    """Return the alias of the model's newest version with a passed gate in every environment."""
    return "/".join(map(slug, (model, OPTIMIZED, environment)))


def artifact_key(*parts: str) -> str:
    """Return an artifact's key: lower-case letters, digits and dashes; an empty part is left out.

    A part with other characters than names of files usually have gets a digest: keys would be equal without.

    >>> artifact_key("summary", "PP-OCR_v4", "local", ""), artifact_key("summary", "été", "local")
    ('collage-summary-pp-ocr-v4-local', 'collage-summary-t-bd010c-local')
    """
    text = "-".join(("collage", *map(slug, parts))).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


def models_prefix(release: str) -> str:
    """Return the beginning of the ids of a release's models, as resources of events.

    >>> models_prefix(""), models_prefix("models.collage")
    ('collage.model.', 'collage.model@models.collage:')
    """
    return f"collage.model@{release}:" if release else "collage.model."


def model_resource(model: str, release: str) -> dict[str, str]:
    """Return the resource of events about a model."""
    resource = f"{models_prefix(release)}{slug(model)}"
    return {"prefect.resource.id": resource, "prefect.resource.name": model}

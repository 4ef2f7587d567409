"""Names of aliases in the store, concurrency limits, artifacts and resources."""

import re

from collage.store.aliases import slug

OPTIMIZED = "optimized"
REJECTED = "Rejected"
"""State of a run with an unusable model; a repetition does not help."""


def limit_name(environment: str) -> str:
    """Return the name of an environment's concurrency limit."""
    return f"collage-{environment}"


def version_alias(model: str, version: str, environment: str) -> str:
    """Return the alias of one version's bundle: `resnet18/3/local`."""
    return "/".join(map(slug, (model, version, environment)))


def optimized_alias(model: str, environment: str) -> str:
    """Return the alias of the model's newest version with a passed gate in every environment."""
    return "/".join(map(slug, (model, OPTIMIZED, environment)))


def artifact_key(*parts: str) -> str:
    """Return an artifact's key: lower-case letters, digits and dashes.

    >>> artifact_key("summary", "PP-OCR_v4", "local")
    'collage-summary-pp-ocr-v4-local'
    """
    text = "-".join(("collage", *parts)).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


def model_resource(model: str) -> dict[str, str]:
    """Return the resource of events about a model."""
    return {"prefect.resource.id": f"collage.model.{slug(model)}", "prefect.resource.name": model}

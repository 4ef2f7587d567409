"""Names that the flows give to things: aliases in the store, limits, artifacts, resources."""

import re

from collage.store.aliases import slug

OPTIMIZED = "optimized"
REJECTED = "Rejected"
"""State of a run whose model cannot be used, whatever the machines do."""


def limit_name(environment: str) -> str:
    """Name the concurrency limit of a measuring environment."""
    return f"collage-{environment}"


def version_alias(model: str, version: str, environment: str) -> str:
    """Name what stands for the bundle of one version: `resnet18/3/local`."""
    return "/".join(map(slug, (model, version, environment)))


def optimized_alias(model: str, environment: str) -> str:
    """Name what stands for the model's newest version that passed everywhere."""
    return "/".join(map(slug, (model, OPTIMIZED, environment)))


def artifact_key(*parts: str) -> str:
    """Write an artifact's key: lower-case letters, digits and dashes.

    >>> artifact_key("summary", "PP-OCR_v4", "local")
    'collage-summary-pp-ocr-v4-local'
    """
    text = "-".join(("collage", *parts)).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


def model_resource(model: str) -> dict[str, str]:
    """Name the resource of events about a model."""
    return {"prefect.resource.id": f"collage.model.{slug(model)}", "prefect.resource.name": model}

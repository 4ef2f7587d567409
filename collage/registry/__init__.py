"""Where models come from and where their state is written back: MLflow, a folder, or S3."""

from collage.registry.base import ModelVersion, Registry, VersionStatus
from collage.registry.open import open_registry

__all__ = ["ModelVersion", "Registry", "VersionStatus", "open_registry"]

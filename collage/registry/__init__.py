"""Where models come from and where their state is written back: MLflow, a folder, or S3."""

from collage.registry.base import ModelVersion, Registry, UserTags, VersionStatus
from collage.registry.open import open_registry

__all__ = ["ModelVersion", "Registry", "UserTags", "VersionStatus", "open_registry"]

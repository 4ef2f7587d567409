"""Bundles: the executable with its manifest, plan, report and golden data."""

from collage.bundle.manifest import ManifestDocument
from collage.bundle.save import save_bundle

__all__ = ["ManifestDocument", "save_bundle"]

"""Tiny valid models with traits that importers of other systems have refused, each with its own builder.

A builder returns a model whose inputs have static shapes. Every model runs in ONNX Runtime.
"""

from tests.support.valid_models import bodies, borders, operands
from tests.support.valid_models.builders import BUILDERS, Builder, model, trait, value, weight

__all__ = [
    "BUILDERS",
    "Builder",
    "bodies",
    "borders",
    "model",
    "operands",
    "trait",
    "value",
    "weight",
]

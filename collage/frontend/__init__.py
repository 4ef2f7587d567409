"""ONNX in, functions out."""

from collage.frontend.model import Function, Model, RelaxNode

__all__ = ["Function", "Model", "RelaxNode"]

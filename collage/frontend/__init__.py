"""Import of ONNX models into functions with typed dataflow graphs."""

from collage.frontend.importer import import_model
from collage.frontend.model import Function, Model, RelaxNode

__all__ = ["Function", "Model", "RelaxNode", "import_model"]

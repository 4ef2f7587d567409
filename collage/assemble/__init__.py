"""Plans in, one executable out."""

from collage.assemble.executable import FunctionPlan, PlannedKernel, assemble

__all__ = ["FunctionPlan", "PlannedKernel", "assemble"]

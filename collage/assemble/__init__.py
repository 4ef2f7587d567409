"""Plans in, one executable out."""

from collage.assemble.executable import FunctionPlan, PlannedKernel, assemble, kernel_symbol

__all__ = ["FunctionPlan", "PlannedKernel", "assemble", "kernel_symbol"]

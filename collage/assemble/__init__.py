"""Plans in, one executable out."""

from collage.assemble.executable import assemble
from collage.assemble.function_plan import FunctionPlan, PlannedKernel, kernel_symbol

__all__ = ["FunctionPlan", "PlannedKernel", "assemble", "kernel_symbol"]

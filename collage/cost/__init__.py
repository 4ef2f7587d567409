"""What a kernel costs: measured seconds, or why it cannot be used, or nothing known yet."""

from collage.cost.cost import Cost, CostKey, Environment, cost_key
from collage.cost.table import CostTable

__all__ = ["Cost", "CostKey", "CostTable", "Environment", "cost_key"]

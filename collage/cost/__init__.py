"""Kernel costs: measured seconds, invalid with a reason, or unknown; and tables of costs."""

from collage.cost.cost import Cost, CostKey, Environment, cost_key
from collage.cost.shared import SharedCostTable
from collage.cost.table import Costs, CostTable

__all__ = ["Cost", "CostKey", "CostTable", "Costs", "Environment", "SharedCostTable", "cost_key"]

"""Kernel costs: measured seconds, invalid with a reason, or unknown; and tables of costs."""

from collage.cost.cost import Cost, CostKey, Environment, cost_key
from collage.cost.shared import SharedCostTable
from collage.cost.table import CostTable, LocalCostTable

__all__ = [
    "Cost",
    "CostKey",
    "LocalCostTable",
    "CostTable",
    "Environment",
    "SharedCostTable",
    "cost_key",
]

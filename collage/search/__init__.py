"""Search: the exact least-cost plan, the k best plans, regrets, and lazy measurement of candidates."""

from collage.search.estimate import AdditiveEstimator, Estimator
from collage.search.explain import Explanation, Regret, explain
from collage.search.k_best import find_plans
from collage.search.lazy import LazyResult, LazySearch, Measure, Round, SearchBudget, search_lazily
from collage.search.problem import Costs, Option, Plan, Problem
from collage.search.shortest_path import find_plan

__all__ = [
    "AdditiveEstimator",
    "SearchBudget",
    "Costs",
    "Estimator",
    "Explanation",
    "LazyResult",
    "LazySearch",
    "Measure",
    "Option",
    "Plan",
    "Problem",
    "Regret",
    "Round",
    "explain",
    "find_plan",
    "find_plans",
    "search_lazily",
]

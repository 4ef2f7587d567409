"""Estimates of unmeasured costs.

An exact lazy search needs lower bounds. The only safe bound, the roofline, is so low that nearly everything
would be measured; so the search uses an estimator, and its result contains the assumption. The additive
estimator models the cost of a region as one call plus the sum of its nodes' units, per backend, and fits both
to measured costs. Long regions are faster than this sum since backends optimise across nodes; a factor of
optimism accounts for that. Measured costs scatter by some per cent, and so do fitted units, while many plans
are just as close to the best: a margin keeps these in the search.
"""

from bisect import insort
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from collage.cost.cost import Cost
from collage.graph.index_set import first, indices
from collage.search.problem import Option, Problem

ENOUGH_RATIOS = 5
"""Number of ratios that replace the initial optimism."""

_Family = tuple[str, str]
"""(backend, variant): each has its own speed."""


class Estimator(Protocol):
    """Estimates the seconds of unmeasured options and learns from measured ones."""

    def estimate(self, option: Option) -> float:
        """Return an optimistic cost in seconds, without the boundary cost; never above +inf."""
        ...

    def observe(self, option: Option, cost: Cost) -> None:
        """Learn from a measured cost; called once for each key, with one of its options."""
        ...


class AdditiveEstimator:
    """estimate = (1 - margin) x optimism x (call + sum of the nodes' units).

    Each backend and variant has its own call, units and optimism.

    Nodes at the same place of regions with equal keys share a unit, so one block of a model teaches the units
    of all its copies. Units are fitted by non-negative ridge least squares on relative errors. A node without
    a measured region has unit 0.

    Optimism is a low quantile of measured / predicted over the variant's regions of several nodes, predicted
    before their measurement, and at most 1; with fewer than `ENOUGH_RATIOS` regions it is at most
    `initial_optimism`.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        initial_optimism: float = 0.7,
        quantile: float = 0.1,
        margin: float = 0.08,
        ridge: float = 1e-3,
    ) -> None:
        self.initial_optimism = initial_optimism
        self.quantile = quantile
        self.margin = margin
        families: dict[_Family, list[Option]] = {}
        for option in problem.ordered:
            families.setdefault(_family(option), []).append(option)
        self._ratios: dict[_Family, list[float]] = {family: [] for family in families}
        self._optimism = dict.fromkeys(families, initial_optimism)
        self._units = {
            family: _FamilyUnits(options, len(problem.graph), ridge)
            for family, options in families.items()
        }

    def estimate(self, option: Option) -> float:
        family = _family(option)
        units = self._units[family]
        units.fit()
        return (1 - self.margin) * self._optimism[family] * units.predict(option)

    def observe(self, option: Option, cost: Cost) -> None:
        if not cost.is_valid:
            return
        units = self._units[_family(option)]
        predicted = units.predict(option)
        if option.size > 1 and predicted > 0 and units.knows(option):
            self._learn_optimism(_family(option), cost.seconds / predicted)
        units.add(option, cost.seconds)

    def _learn_optimism(self, family: _Family, ratio: float) -> None:
        ratios = self._ratios[family]
        insort(ratios, ratio)
        limit = 1.0 if len(ratios) >= ENOUGH_RATIOS else self.initial_optimism
        self._optimism[family] = min(limit, ratios[int(self.quantile * (len(ratios) - 1))])


class _FamilyUnits:
    """The seconds of a call and of every class of nodes on one variant of a backend."""

    def __init__(self, options: Sequence[Option], nodes: int, ridge: float) -> None:
        self.ridge = ridge
        self.classes = _node_classes(options, nodes)
        """Number of each node's unit; unit 0 is the call, -1 a node without an option."""
        self.units = np.zeros(int(self.classes.max(initial=0)) + 1)
        self.fitted = np.zeros(len(self.units), dtype=bool)
        self.rows: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._sums = np.zeros(nodes + 1)
        self._stale = False

    def knows(self, option: Option) -> bool:
        """Tell whether the last fit knew every node of the option."""
        return bool(self.fitted[self.classes[_node_array(option)]].all())

    def predict(self, option: Option) -> float:
        """Return the additive prediction in seconds."""
        start, end = first(option.nodes), option.nodes.bit_length()
        if option.size == end - start:
            return float(self.units[0] + self._sums[end] - self._sums[start])
        return float(self.units[0] + self.units[self.classes[_node_array(option)]].sum())

    def add(self, option: Option, seconds: float) -> None:
        """Add a measured region to the rows of the fit."""
        columns, counts = np.unique(self.classes[_node_array(option)], return_counts=True)
        self.rows.append((np.append(0, columns), np.append(1, counts), max(seconds, 1e-12)))
        self._stale = True

    def fit(self, sweeps: int = 30) -> None:
        """Fit the units by cyclic coordinate descent, starting from the last ones."""
        if not self._stale:
            return
        self._stale = False
        # Each row is divided by its seconds, so the fit minimises relative errors.
        order = np.concatenate([columns for columns, _, _ in self.rows])
        values = np.concatenate([counts / seconds for _, counts, seconds in self.rows])
        row = np.repeat(np.arange(len(self.rows)), [len(columns) for columns, _, _ in self.rows])
        by_column = np.argsort(order, kind="stable")
        used, starts = np.unique(order[by_column], return_index=True)
        self.fitted[used] = True
        entries = np.split(by_column, starts[1:])
        error = 1.0 - np.bincount(row, values * self.units[order], len(self.rows))
        columns = [(unit, row[at], values[at]) for unit, at in zip(used, entries, strict=True)]
        for _ in range(sweeps):
            for unit, rows, weights in columns:
                square = weights @ weights
                step = weights @ error[rows] - self.ridge * square * self.units[unit]
                better = max(0.0, self.units[unit] + step / (square * (1 + self.ridge)))
                error[rows] -= weights * (better - self.units[unit])
                self.units[unit] = better
        per_node = np.where(self.classes > 0, self.units[np.maximum(self.classes, 0)], 0.0)
        self._sums = np.concatenate([[0.0], np.cumsum(per_node)])


def _node_classes(options: Sequence[Option], nodes: int) -> np.ndarray:
    """Number the nodes' classes from 1: (key of the node's smallest option, place in this option)."""
    classes = np.full(nodes, -1)
    numbers: dict[tuple[Hashable, int], int] = {}
    covered = 0
    for option in sorted(options, key=lambda option: option.size):
        new = option.nodes & ~covered
        covered |= new
        for node in indices(new):
            place = (option.nodes & ((1 << node) - 1)).bit_count()
            classes[node] = numbers.setdefault((option.key, place), len(numbers) + 1)
    return classes


def _family(option: Option) -> _Family:
    return option.backend, option.variant


def _node_array(option: Option) -> np.ndarray:
    return np.fromiter(indices(option.nodes), dtype=np.int64, count=option.size)

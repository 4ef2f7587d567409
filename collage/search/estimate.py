"""Estimates of costs that are not measured yet.

An exact lazy search needs lower bounds. The only safe one, the roofline, is so low that nearly
everything would be measured, so the search asks an estimator and says in its result what was
assumed. The additive estimator takes a region's cost as one call plus the sum of its nodes' units,
per backend, and learns both from what was measured; long regions are faster than that sum by as
much as the backend optimises across nodes, which a factor of optimism allows for. Measured costs
scatter by some per cent, units that are learnt from them with them, and many plans are as close to
the best as that: a margin keeps those from being given up unmeasured.
"""

from bisect import insort
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from collage.cost.cost import Cost
from collage.graph.index_set import first, indices
from collage.search.problem import Option, Problem

ENOUGH_RATIOS = 5
"""Ratios after which they replace the initial optimism."""

_Family = tuple[str, str]
"""(backend, variant): each is a toolchain of its own as far as speed goes."""


class Estimator(Protocol):
    """Guesses the seconds of unmeasured options and learns from measured ones."""

    def estimate(self, option: Option) -> float:
        """Return an optimistic cost in seconds, without the boundary cost; never above +inf."""
        ...

    def observe(self, option: Option, cost: Cost) -> None:
        """Take in a measured cost; called once for each key, with one of its options."""
        ...


class AdditiveEstimator:
    """estimate = (1 - margin) x optimism x (call + sum of the nodes' units).

    Call, units and optimism are of one backend and variant.

    Nodes in the same place of regions with equal keys share a unit, so what was learnt in one block
    of a model holds in all of them. Units are fitted by non-negative ridge least squares on
    relative errors. A node that no measured region of the variant contains has unit 0.

    Optimism is a low quantile of measured / predicted over the variant's regions of several nodes,
    each predicted before it was measured, and never above 1; until there are five of them it is
    the smaller of that and `initial_optimism`.
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

    def optimism(self, backend: str, variant: str = "") -> float:
        """Return the factor in force for a backend's variant, without the margin."""
        return self._optimism[backend, variant]

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
        """Per node: its unit's number; unit 0 is the call, -1 a node that it never takes."""
        self.units = np.zeros(int(self.classes.max(initial=0)) + 1)
        self.known = np.zeros(len(self.units), dtype=bool)
        self.rows: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._sums = np.zeros(nodes + 1)
        self._stale = False

    def knows(self, option: Option) -> bool:
        """Tell whether the last fit knew every node of the option."""
        return bool(self.known[self.classes[_node_array(option)]].all())

    def predict(self, option: Option) -> float:
        """Return the additive prediction in seconds."""
        start, end = first(option.nodes), option.nodes.bit_length()
        if option.size == end - start:
            return float(self.units[0] + self._sums[end] - self._sums[start])
        return float(self.units[0] + self.units[self.classes[_node_array(option)]].sum())

    def add(self, option: Option, seconds: float) -> None:
        """Add a measured region to what the units are fitted to."""
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
        self.known[used] = True
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
    """Number the nodes' classes from 1: (key of the smallest option with the node, place in it)."""
    found = np.full(nodes, -1)
    numbers: dict[tuple[Hashable, int], int] = {}
    seen = 0
    for option in sorted(options, key=lambda option: option.size):
        new = option.nodes & ~seen
        seen |= new
        for node in indices(new):
            place = (option.nodes & ((1 << node) - 1)).bit_count()
            found[node] = numbers.setdefault((option.key, place), len(numbers) + 1)
    return found


def _family(option: Option) -> _Family:
    return option.backend, option.variant


def _node_array(option: Option) -> np.ndarray:
    return np.fromiter(indices(option.nodes), dtype=np.int64, count=option.size)

"""What kernels cost inside executables, where costs measured alone are off.

A kernel that is measured alone finds caches, memory and clock as a sweep left them. In an executable
other kernels leave them: one that streams much memory takes longer there on some processors, a small
one less. So where an executable runs anyway, each of its kernels is timed in place, and what calls
take beside their kernels is shared out among these, so that the costs of the plan's kernels add up to
what one call of it takes. A kernel that was seen in place costs what it took there. One that was not is
off, most likely, as others of its implementation are; the less of these was seen, the more it is off as
all that was seen.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.cost.cost import Cost
from collage.rules.rule import HOST
from collage.search.problem import Costs, Option, Plan, Problem

PRIOR = 0.1
"""Share of all that was seen which one implementation must have for its own ratio to weigh half."""
UNSEEN = 0.01
"""Share of a plan's time that may be of kernels that were not seen where the plan counts as known."""


@dataclass(frozen=True)
class Sighting:
    """A kernel that ran in an executable: its cost alone, and what its call took there, in seconds."""

    key: Hashable
    alone_s: float
    in_place_s: float


@dataclass
class InPlace:
    """What was seen of one function's kernels inside executables."""

    problem: Problem
    costs: Costs
    """Of kernels alone."""
    seen: list[Sighting] = field(default_factory=list)

    def add(
        self, plan: Plan, kernels_s: Mapping[int, float], call_s: float, usual_s: float
    ) -> None:
        """Take in the kernels of one plan.

        Args:
            plan: what ran.
            kernels_s: seconds of its kernels by their position; views have none.
            call_s: of one whole call at that moment.
            usual_s: of one whole call, as it was compared with others.
        """
        total_s = sum(kernels_s.values())
        if not total_s:
            return
        pace = usual_s / max(call_s, total_s)
        rest_s = max(0.0, call_s - total_s) / len(kernels_s)
        for position, seconds in kernels_s.items():
            key = plan.options[position].key
            alone_s = self.costs[key].seconds
            self.seen.append(Sighting(key, alone_s, pace * (seconds + rest_s)))

    def corrected(self) -> dict[Hashable, Cost]:
        """Return the costs in place: seen, or as far off as others were; without sightings, as they are."""
        by_key: dict[Hashable, list[Sighting]] = defaultdict(list)
        by_kind: dict[tuple[str, str], list[Sighting]] = defaultdict(list)
        for one in self.seen:
            by_key[one.key].append(one)
            by_kind[self._kind(one.key)].append(one)
        alone_s, in_place_s = _sums(self.seen)
        if not alone_s:
            return dict(self.costs)
        overall = in_place_s / alone_s
        weight_s = PRIOR * alone_s
        ratios = {kind: _ratio(found, overall, weight_s) for kind, found in by_kind.items()}
        corrected = {}
        for key, cost in self.costs.items():
            if key in by_key:
                ratio = sum(one.in_place_s for one in by_key[key]) / len(by_key[key]) / cost.seconds
            else:
                ratio = ratios.get(self._kind(key), overall)
            is_kernel = cost.is_valid and key != HOST
            corrected[key] = scaled(cost, ratio) if is_kernel else cost
        return corrected

    def knows(self, plan: Plan) -> bool:
        """Tell whether the plan's kernels were all seen, but for `UNSEEN` of what they take alone."""
        seen = {one.key for one in self.seen}
        kernels = [(option.key in seen, self.costs[option.key].seconds) for option in plan.options]
        unseen_s = sum(seconds for known, seconds in kernels if not known)
        return any(known for known, _ in kernels) and unseen_s <= UNSEEN * sum(
            s for _, s in kernels
        )

    def _kind(self, key: Hashable) -> tuple[str, str]:
        options: Sequence[Option] = self.problem.options_of(key)
        return (options[0].backend, options[0].variant) if options else ("", "")


def scaled(cost: Cost, factor: float) -> Cost:
    """Return the cost, its interval and its samples `factor` times as long."""
    samples = tuple(factor * sample for sample in cost.samples)
    return replace(
        cost,
        seconds=factor * cost.seconds,
        low=factor * cost.low,
        high=factor * cost.high,
        samples=samples,
    )


def at_pace(costs: Costs, pace: float) -> dict[Hashable, Cost]:
    """Return the costs on a machine where every kernel takes `pace` times as long."""
    return {
        key: scaled(cost, pace) if cost.is_valid and key != HOST else cost
        for key, cost in costs.items()
    }


def _sums(seen: Iterable[Sighting]) -> tuple[float, float]:
    pairs = [(one.alone_s, one.in_place_s) for one in seen]
    return sum(alone for alone, _ in pairs), sum(in_place for _, in_place in pairs)


def _ratio(seen: Iterable[Sighting], overall: float, weight_s: float) -> float:
    alone_s, in_place_s = _sums(seen)
    return (in_place_s + overall * weight_s) / (alone_s + weight_s)

"""The final comparison: rounds of plans and frameworks that go on until something is proven.

A ratio is taken over the rounds that both targets have run: whoever is decided stops. Which plan is judged
is settled at the first look; afterwards only this plan and the baselines that it is not yet decided
against go on.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collage.verify.interleaved_benchmark import (
    Arena,
    Latency,
    OnRound,
    fastest_first,
    interval_of_ratio,
    latency_of,
    ratio,
)
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import LOOKS, NOISE, RatioInterval, Verdict, ratio_interval

LEAST_GAIN = 0.01
"""Share by which a mix has to be faster than the best plan of one toolchain, unless it surely is."""


@dataclass
class Comparison:
    """Targets that run interleaved, in rounds that are continued; rounds are numbered over all."""

    arena: Arena
    seconds_each: float
    on_round: OnRound | None = None
    latencies: dict[str, Latency] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """How often each target has run `seconds_each`."""
    _rounds: dict[str, dict[int, float]] = field(default_factory=dict)
    _count: int = 0

    def run(self, names: Sequence[str], times: float = 1) -> None:
        """Give each of the targets `times` as long as `seconds_each`; one that dies keeps the reason."""
        found = self.arena.compare(names, times * self.seconds_each, self.on_round)
        for name, latency in found.items():
            if latency.reason:
                self.latencies[name] = latency
                continue
            rounds = self._rounds.setdefault(name, {})
            rounds.update(enumerate(latency.rounds, start=self._count))
            self.latencies[name] = latency_of(tuple(rounds.values()))
            self.times[name] = self.times.get(name, 0) + times
        self._count += max((len(one.rounds) for one in found.values()), default=0)

    def ran(self, names: Iterable[str]) -> list[str]:
        """Return those of the targets that have not died."""
        return [name for name in names if not self.latencies[name].reason]

    def ratio(self, plan: str, baseline: str) -> RatioInterval:
        """Return the ratio of two targets over the rounds that both have run."""
        above, below = self._rounds[plan], self._rounds[baseline]
        common = [number for number in above if number in below]
        return ratio_interval([above[n] for n in common], [below[n] for n in common])


@dataclass(frozen=True)
class Judgement:
    """What a comparison says of one plan; `ratios` are those to each baseline that ran."""

    verdict: Verdict
    ratios: Mapping[str, RatioInterval]
    allowance: float

    @property
    def undecided(self) -> list[str]:
        """Return the baselines against which nothing is proven yet."""
        found = self.ratios.items()
        return [name for name, one in found if one.verdict(self.allowance) is Verdict.UNPROVEN]

    @property
    def worst(self) -> tuple[str, RatioInterval] | None:
        """Return the baseline beside which the plan looks slowest, None where none ran."""
        return max(self.ratios.items(), key=lambda item: item[1].ratio, default=None)

    def text(self) -> str:
        """Say what is not proven, "" where the plan is as fast as every baseline."""
        if self.verdict is Verdict.NOT_SLOWER:
            return ""
        wrong = [
            (name, one)
            for name, one in self.ratios.items()
            if one.verdict(self.allowance) is self.verdict
        ]
        name, one = max(wrong, key=lambda item: item[1].ratio)
        if self.verdict is Verdict.SLOWER:
            return f"{(one.ratio - 1) * 100:.1f} % slower than {name} on the original file"
        return (
            f"not proven to be as fast as {name} on the original file: {one.ratio:.3f} times its "
            f"latency, with 95 % certainty between {one.low:.3f} and {one.high:.3f} times"
        )


def judge(
    comparison: Comparison, plan: str, baselines: Iterable[str], allowance: float
) -> Judgement:
    """Judge a plan beside the baselines that have not died."""
    ratios = {name: comparison.ratio(plan, name) for name in comparison.ran(baselines)}
    verdicts = {one.verdict(allowance) for one in ratios.values()}
    order = (Verdict.SLOWER, Verdict.UNPROVEN, Verdict.NOT_SLOWER)
    return Judgement(
        next((one for one in order if one in verdicts), Verdict.NOT_SLOWER), ratios, allowance
    )


def proven(
    comparison: Comparison,
    plan: str,
    baselines: Sequence[str],
    allowance: float,
    hopeless: float = math.inf,
) -> Judgement | None:
    """Judge a plan that has run, and go on until a verdict is proven or the last look is over.

    Args:
        comparison: in which the plan and the baselines have run.
        plan: its name.
        baselines: the frameworks that count.
        allowance: share by which it may be slower.
        hopeless: median ratio from which on more rounds are for nothing: something else ships anyway.

    Returns:
        None where the plan has died.
    """
    return _continued(comparison, plan, baselines, allowance, lambda ratios: max(ratios) < hopeless)


def _continued(
    comparison: Comparison,
    plan: str,
    baselines: Sequence[str],
    allowance: float,
    worthwhile: Callable[[Sequence[float]], bool],
) -> Judgement | None:
    """Judge a plan, and run further rounds while its undecided ratios are worth them."""
    found = judge(comparison, plan, baselines, allowance)
    for look in LOOKS:
        rest = look - comparison.times[plan]
        if rest <= 0:
            continue
        if found.verdict is not Verdict.UNPROVEN:
            break
        if not worthwhile([found.ratios[name].ratio for name in found.undecided]):
            break
        comparison.run([plan, *found.undecided], rest)
        if comparison.latencies[plan].reason:
            return None
        found = judge(comparison, plan, baselines, allowance)
    return found


def finalists(
    plans: Sequence[PlanExecutable], latencies: Mapping[str, Latency]
) -> list[PlanExecutable]:
    """Return the plans to judge, in the order in which they should ship.

    The fastest comes first, then the best plan of one toolchain. A mix that is hardly faster than that one
    gives way: what the rounds of one comparison cannot tell apart, luck has put in order.
    """
    named = {plan.name: plan for plan in plans}
    by_speed = [named[name] for name in fastest_first({name: latencies[name] for name in named})]
    single = next((plan for plan in by_speed if plan.single), None)
    if single is None or single is by_speed[0]:
        return by_speed[:1]
    if _gains(latencies[by_speed[0].name], latencies[single.name]):
        return [by_speed[0], single]
    return [single]


def reason_of(plan: PlanExecutable, found: Judgement, before: str = "") -> str:
    """Put the decision into words.

    Args:
        plan: what ships.
        found: the judgement about it.
        before: why a mix gave way to it, "" where none did.
    """
    if problem := found.text():
        words = problem
    else:
        how = "within the tolerance of" if plan.reduced else "equal to"
        alone = f"no mix is faster than {plan.single} alone"
        what = alone if plan.single else "the mix is the fastest"
        words = f"outputs {how} the original model's; {what}"
    return f"the mix is {before}, so {plan.single} alone ships: {words}" if before else words


def original_reason(plan: PlanExecutable, found: Judgement) -> str:
    """Put into words that the original file ships."""
    if found.verdict is Verdict.SLOWER:
        return f"the original file, opened as {plan.original} opens it, is {found.text()}"
    return f"the original file ships, opened as {plan.original} opens it: nothing is proven faster"


def judged_original(
    comparison: Comparison, plan: str, baselines: Sequence[str]
) -> Judgement | None:
    """Judge the original-file plan, which is one of the baselines by construction.

    Here the burden of proof is on the other side: the same library runs the same file with the same
    options, so what the rounds cannot tell apart is taken for the same. The plan is refused where it is
    proven to be slower, by `NOISE`, than its own framework or another: then a caller's call costs more
    than the framework's.

    Returns:
        None where the plan has died.
    """
    found = _continued(comparison, plan, baselines, NOISE, lambda ratios: max(ratios) > 1 + NOISE)
    if found is not None and found.verdict is Verdict.UNPROVEN:
        return Judgement(Verdict.NOT_SLOWER, found.ratios, found.allowance)
    return found


def _gains(faster: Latency, slower: Latency) -> bool:
    """Tell whether one is faster by `LEAST_GAIN`, or surely by less."""
    surely = interval_of_ratio(faster.rounds, slower.rounds)[1] < 1
    return ratio(faster, slower) <= 1 - LEAST_GAIN or surely

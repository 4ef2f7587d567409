"""The final round: plans and frameworks run interleaved until a verdict is proven.

A ratio of two targets is taken over the rounds that both have run, so a target with a verdict can stop. The
plan to judge is chosen at the first look; later rounds run this plan and the baselines without a verdict.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collage.verify.interleaved_benchmark import (
    InterleavedBenchmark,
    Latency,
    OnRound,
    fastest_first,
    interval_of_ratio,
    latency_of,
    ratio,
)
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import LOOKS, NOISE, RatioInterval, Verdict, ratio_interval

MIN_GAIN = 0.01
"""Gain of a mix over the best plan of one toolchain from which the mix ships, unless it is certain."""

CALL_S = 5e-6
"""Allowance of the original-file plan, in seconds a call: outputs that the framework allocates are handed on
through the plug-in (measured: 4 µs)."""


@dataclass
class Comparison:
    """An interleaved comparison that can be continued; rounds are numbered over all continuations."""

    benchmark: InterleavedBenchmark
    seconds_each: float
    on_round: OnRound | None = None
    latencies: dict[str, Latency] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """Running time of each target, in multiples of `seconds_each`."""
    _rounds: dict[str, dict[int, float]] = field(default_factory=dict)
    _count: int = 0

    def run(self, names: Sequence[str], times: float = 1) -> None:
        """Run each target for `times` times `seconds_each`; the latency of a failed one has the reason."""
        latencies = self.benchmark.compare(names, times * self.seconds_each, self.on_round)
        for name, latency in latencies.items():
            if latency.reason:
                self.latencies[name] = latency
                continue
            rounds = self._rounds.setdefault(name, {})
            rounds.update(enumerate(latency.rounds, start=self._count))
            self.latencies[name] = latency_of(tuple(rounds.values()))
            self.times[name] = self.times.get(name, 0) + times
        self._count += max((len(latency.rounds) for latency in latencies.values()), default=0)

    def ran(self, names: Iterable[str]) -> list[str]:
        """Return the targets among `names` that have not failed."""
        return [name for name in names if not self.latencies[name].reason]

    def ratio(self, plan: str, baseline: str) -> RatioInterval:
        """Return the ratio of two targets over the rounds that both have run."""
        above, below = self._rounds[plan], self._rounds[baseline]
        common = [number for number in above if number in below]
        return ratio_interval([above[n] for n in common], [below[n] for n in common])


@dataclass(frozen=True)
class Judgement:
    """Result of a comparison for one plan.

    Attributes:
        verdict: worst verdict over the baselines.
        ratios: ratios of the plan to each baseline that ran, by name.
        allowance: share by which the plan may be slower.
    """

    verdict: Verdict
    ratios: Mapping[str, RatioInterval]
    allowance: float

    @property
    def undecided(self) -> list[str]:
        """Names of the baselines without a verdict."""
        return [
            name
            for name, interval in self.ratios.items()
            if interval.verdict(self.allowance) is Verdict.UNPROVEN
        ]

    @property
    def worst(self) -> tuple[str, RatioInterval] | None:
        """The baseline with the largest ratio; None where none ran."""
        return max(self.ratios.items(), key=lambda item: item[1].ratio, default=None)

    def text(self) -> str:
        """Say what is not proven, "" where the plan is as fast as every baseline."""
        if self.verdict is Verdict.NOT_SLOWER:
            return ""
        decisive = [
            (name, interval)
            for name, interval in self.ratios.items()
            if interval.verdict(self.allowance) is self.verdict
        ]
        name, interval = max(decisive, key=lambda item: item[1].ratio)
        if self.verdict is Verdict.SLOWER:
            return f"{(interval.ratio - 1) * 100:.1f} % slower than {name} on the original file"
        return (
            f"not proven to be as fast as {name} on the original file: {interval.ratio:.3f} times its "
            f"latency, with 95 % certainty between {interval.low:.3f} and {interval.high:.3f} times"
        )


def judge(
    comparison: Comparison, plan: str, baselines: Iterable[str], allowance: float
) -> Judgement:
    """Judge a plan against the baselines that have not failed."""
    ratios = {name: comparison.ratio(plan, name) for name in comparison.ran(baselines)}
    verdicts = {interval.verdict(allowance) for interval in ratios.values()}
    order = (Verdict.SLOWER, Verdict.UNPROVEN, Verdict.NOT_SLOWER)
    worst = next((verdict for verdict in order if verdict in verdicts), Verdict.NOT_SLOWER)
    return Judgement(worst, ratios, allowance)


def judge_until_proven(
    comparison: Comparison,
    plan: str,
    baselines: Sequence[str],
    *,
    allowance: float,
    give_up_ratio: float = math.inf,
) -> Judgement | None:
    """Judge a plan, and run further rounds until a verdict is proven or the last look is over.

    Args:
        comparison: comparison in which the plan and the baselines have run.
        plan: name of the plan.
        baselines: names of the frameworks that count.
        allowance: share by which the plan may be slower.
        give_up_ratio: median ratio from which no further round is run, since the original file ships;
            default never.

    Returns:
        None where the plan's process ended.
    """
    return _continued(
        comparison,
        plan,
        baselines,
        allowance=allowance,
        is_promising=lambda ratios: max(ratios) < give_up_ratio,
    )


def judge_original(comparison: Comparison, plan: str, baselines: Sequence[str]) -> Judgement | None:
    """Judge the original-file plan. The burden of proof is reversed.

    The same library runs the same file with the same options, so the plan counts as equal where the rounds
    show no difference. It is refused where it is proven slower than its own framework or another by `NOISE`
    and by `CALL_S` a call. A model of a few microseconds would otherwise get no bundle at all.

    Returns:
        None where the plan's process ended.
    """
    latencies = [comparison.latencies[name].seconds for name in comparison.ran(baselines)]
    allowance = max(NOISE, CALL_S / min(latencies, default=math.inf))
    judgement = _continued(
        comparison,
        plan,
        baselines,
        allowance=allowance,
        is_promising=lambda ratios: max(ratios) > 1 + allowance,
    )
    if judgement is not None and judgement.verdict is Verdict.UNPROVEN:
        return Judgement(Verdict.NOT_SLOWER, judgement.ratios, judgement.allowance)
    return judgement


def _continued(
    comparison: Comparison,
    plan: str,
    baselines: Sequence[str],
    *,
    allowance: float,
    is_promising: Callable[[Sequence[float]], bool],
) -> Judgement | None:
    """Judge a plan, and run further rounds while its undecided ratios are promising."""
    judgement = judge(comparison, plan, baselines, allowance)
    for look in LOOKS:
        missing_times = look - comparison.times[plan]
        if missing_times <= 0:
            continue
        if judgement.verdict is not Verdict.UNPROVEN:
            break
        if not is_promising([judgement.ratios[name].ratio for name in judgement.undecided]):
            break
        comparison.run([plan, *judgement.undecided], missing_times)
        if comparison.latencies[plan].reason:
            return None
        judgement = judge(comparison, plan, baselines, allowance)
    return judgement


def plans_to_judge(
    plans: Sequence[PlanExecutable], latencies: Mapping[str, Latency]
) -> list[PlanExecutable]:
    """Return the plans to judge, the preferred one first.

    The fastest plan comes first, then the best plan of one toolchain. A mix with less than `MIN_GAIN` over
    that one gives way to it: within the noise the order is chance.
    """
    named = {plan.name: plan for plan in plans}
    by_speed = [named[name] for name in fastest_first({name: latencies[name] for name in named})]
    single = next((plan for plan in by_speed if plan.single), None)
    if single is None or single is by_speed[0]:
        return by_speed[:1]
    if _is_faster(latencies[by_speed[0].name], latencies[single.name]):
        return [by_speed[0], single]
    return [single]


def reason_of(plan: PlanExecutable, judgement: Judgement, mix_problem: str = "") -> str:
    """Put the decision into words.

    Args:
        plan: plan that ships.
        judgement: judgement of this plan.
        mix_problem: problem of the mix that gave way to it, "" where none did.
    """
    if problem := judgement.text():
        words = problem
    else:
        accuracy = "within the tolerance of" if plan.reduced else "equal to"
        speed = (
            f"no mix is faster than {plan.single} alone"
            if plan.single
            else "the mix is the fastest"
        )
        words = f"outputs {accuracy} the original model's; {speed}"
    if not mix_problem:
        return words
    return f"the mix is {mix_problem}, so {plan.single} alone ships: {words}"


def original_reason(plan: PlanExecutable, judgement: Judgement) -> str:
    """Put into words that the original file ships."""
    if judgement.verdict is Verdict.SLOWER:
        return f"the original file, opened as {plan.original} opens it, is {judgement.text()}"
    reason = (
        f"the original file ships, opened as {plan.original} opens it: nothing is proven faster"
    )
    if judgement.worst and judgement.worst[1].ratio > 1 + NOISE:
        return f"{reason}; a call through the bundle takes up to {CALL_S * 1e6:.0f} µs more"
    return reason


def _is_faster(faster: Latency, slower: Latency) -> bool:
    """Tell whether the gain is at least `MIN_GAIN`, or certain at 95 %."""
    is_certain = interval_of_ratio(faster.rounds, slower.rounds)[1] < 1
    return ratio(faster, slower) <= 1 - MIN_GAIN or is_certain

"""Noise proves nothing: what intervals say of few rounds, of rounds that are alike, and of many looks."""

import math

import numpy as np
import pytest

from collage.verify.final_round import judge, judge_original, judge_until_proven
from collage.verify.interleaved_benchmark import interval_of_ratio, ratio
from collage.verify.verdict import (
    LOOKS,
    MIN_INTERVAL_ROUNDS,
    NOISE,
    RatioInterval,
    Verdict,
    ratio_interval,
)
from tests.verify.rounds import Independent, Persistent, compared


@pytest.mark.parametrize(
    ("low", "high", "allowance", "verdict"),
    [
        (0.8, 0.9, 0.0, Verdict.NOT_SLOWER),
        (0.9, 1.0, 0.0, Verdict.NOT_SLOWER),
        (0.9, 1.001, 0.0, Verdict.UNPROVEN),
        (0.99, 1.02, NOISE, Verdict.NOT_SLOWER),
        (0.99, 1.03, NOISE, Verdict.UNPROVEN),
        (1.01, 1.03, NOISE, Verdict.UNPROVEN),
        (1.021, 1.03, NOISE, Verdict.SLOWER),
        (1.001, 1.002, 0.0, Verdict.SLOWER),
        (0.0, math.inf, NOISE, Verdict.UNPROVEN),
    ],
)
def test_an_interval_has_one_of_three_verdicts(low, high, allowance, verdict):
    assert RatioInterval((low + min(high, 2)) / 2, low, high).verdict(allowance) is verdict


def test_few_rounds_prove_nothing():
    interval = ratio_interval([0.5] * (MIN_INTERVAL_ROUNDS - 1), [1.0] * (MIN_INTERVAL_ROUNDS - 1))
    assert (interval.ratio, interval.low, interval.high) == (0.5, 0.0, math.inf)
    enough = ratio_interval([0.5] * MIN_INTERVAL_ROUNDS, [1.0] * MIN_INTERVAL_ROUNDS)
    assert (enough.low, enough.high) == (0.5, 0.5)


def test_rounds_that_are_alike_count_as_fewer():
    values = np.random.default_rng(0).normal(1.0, 0.05, 100)
    mixed = ratio_interval(values.tolist(), [1.0] * 100)
    ordered = ratio_interval(np.sort(values).tolist(), [1.0] * 100)  # the machine drifts
    assert mixed.high - mixed.low < 0.05
    assert ordered.low < 0.7
    assert ordered.high > 1.4


def drifting_rounds(ratio, seed):
    """41 ratios around `ratio`, of which neighbours are alike."""
    rounds = [0.0]
    noise = np.random.default_rng(seed)
    while len(rounds) < 41:
        rounds.append(0.8 * rounds[-1] + noise.normal(0, 0.03))
    return [ratio * math.exp(value) for value in rounds]


def test_few_independent_rounds_decide_what_is_far_from_one():
    far = [ratio_interval(drifting_rounds(0.16, seed), [1.0] * 41) for seed in range(40)]
    near = [ratio_interval(drifting_rounds(0.98, seed), [1.0] * 41) for seed in range(40)]
    assert all(interval.low <= interval.ratio <= interval.high for interval in [*far, *near])
    decided = [interval for interval in far if interval.verdict(0.0) is Verdict.NOT_SLOWER]
    assert len(decided) >= 38
    assert sum(interval.verdict(0.0) is Verdict.UNPROVEN for interval in near) >= 30


def passes_the_old_rule(comparison):
    """The rule before: a plan passed unless it was slower by more than noise, and surely."""
    plan, baseline = comparison.latencies["plan"], comparison.latencies["baseline"]
    low, _ = interval_of_ratio(plan.rounds, baseline.rounds)
    return not (ratio(plan, baseline) > 1 + NOISE and low > 1)


@pytest.mark.parametrize("allowance", [0.0, NOISE])
def test_injected_noise_lets_no_slower_plan_pass(allowance):
    """A plan that is 1.3 times slower, while a guest comes and goes on its core, for seconds."""
    times = {"plan": 1.3, "baseline": 1.0}
    old, new = 0, []
    for seed in range(60):
        comparison = compared(times, Persistent(seed, 0.5, 0.95), seconds_each=0.5)
        old += passes_the_old_rule(comparison)
        new.append(
            judge_until_proven(comparison, "plan", ["baseline"], allowance=allowance).verdict
        )
    assert old >= 10  # it took what it could not disprove for proven
    assert new.count(Verdict.NOT_SLOWER) <= 4
    assert new.count(Verdict.UNPROVEN) > 10


@pytest.mark.parametrize("seconds_each", [0.3, 2.0])
@pytest.mark.parametrize(
    "noise",
    [
        lambda seed: Independent(seed, 0.05),
        lambda seed: Persistent(seed, 0.05, 0.3),
        lambda seed: Persistent(seed, 0.05, 0.7),
    ],
    ids=["independent", "a little alike", "alike"],
)
def test_verdicts_are_rarely_wrong_over_all_looks(noise, seconds_each):
    """At the edge of the allowance either verdict is wrong, and each look is a chance to be."""
    wrong = {Verdict.NOT_SLOWER: 0, Verdict.SLOWER: 0}
    for seed in range(150):
        comparison = compared({"plan": 1.0, "baseline": 1.0}, noise(seed), seconds_each)
        verdict = judge_until_proven(comparison, "plan", ["baseline"], allowance=0.0).verdict
        wrong[verdict] = wrong.get(verdict, 0) + 1
    assert wrong[Verdict.NOT_SLOWER] <= 0.06 * 150
    assert wrong[Verdict.SLOWER] <= 0.06 * 150


@pytest.mark.parametrize(("times", "verdict"), [(0.95, Verdict.NOT_SLOWER), (1.1, Verdict.SLOWER)])
def test_a_clear_difference_is_proven(times, verdict):
    verdicts = [
        judge_until_proven(
            compared({"plan": times, "baseline": 1.0}, Persistent(seed, 0.05, 0.3)),
            "plan",
            ["baseline"],
            allowance=NOISE,
        ).verdict
        for seed in range(20)
    ]
    assert verdicts == [verdict] * 20


def test_what_is_decided_needs_no_further_rounds():
    times = {"plan": 0.9, "close": 0.9, "far": 2.0}
    comparison = compared(times, Independent(0, 0.1), seconds_each=2.0)
    assert (
        judge_until_proven(comparison, "plan", ["close", "far"], allowance=0.0).verdict
        is Verdict.UNPROVEN
    )
    first, *later = comparison.benchmark.calls
    assert first == (("plan", "close", "far"), 2.0)
    assert {names for names, _ in later} == {("plan", "close")}
    assert sum(seconds for _, seconds in comparison.benchmark.calls) == pytest.approx(
        LOOKS[-1] * 2.0
    )


def test_a_plan_without_gain_is_given_up_if_the_original_ships():
    comparison = compared({"plan": 1.1, "baseline": 1.0}, Independent(0, 0.3))
    judgement = judge_until_proven(
        comparison, "plan", ["baseline"], allowance=0.0, give_up_ratio=1.0
    )
    assert judgement.ratios["baseline"].ratio >= 1.0
    assert judgement.verdict is not Verdict.NOT_SLOWER
    assert len(comparison.benchmark.calls) == 1


def test_ratios_use_the_rounds_that_both_have_run():
    """The machine is twice as slow later, when the decided baseline does not run any more."""

    def slower_later(name, first, count):
        return np.where(np.arange(first, first + count) < 5, 1.0, 2.0)

    comparison = compared({"plan": 1.0, "other": 1.25}, slower_later, seconds_each=0.3)
    comparison.run(["plan"], 3)
    assert comparison.ratio("plan", "other").ratio == pytest.approx(0.8)
    comparison.run(["plan", "other"], 9)
    assert comparison.ratio("plan", "other").ratio == pytest.approx(0.8)


def test_a_plan_that_ends_in_further_rounds_has_no_verdict():
    times = {"plan": 1.0, "baseline": 1.0}
    comparison = compared(times, Independent(0, 0.3), dying={"plan": 2})
    assert judge_until_proven(comparison, "plan", ["baseline"], allowance=0.0) is None
    assert "died" in comparison.latencies["plan"].reason


def test_a_baseline_that_did_not_run_refuses_nothing():
    comparison = compared({"plan": 1.0, "baseline": 0.5}, dying={"baseline": 1})
    assert judge(comparison, "plan", ["baseline"], 0.0).verdict is Verdict.NOT_SLOWER


def test_the_original_file_is_refused_where_it_is_proven_slower():
    """It is its framework by construction, so noise alone does not refuse it."""
    calm = compared({"plan": 1.2, "baseline": 1.0}, Independent(0, 0.02))
    assert judge_original(calm, "plan", ["baseline"]).verdict is Verdict.SLOWER
    verdicts = set()
    for seed in range(20):
        noisy = compared({"plan": 1.0, "baseline": 1.0}, Persistent(seed, 0.3, 0.5), 0.3)
        verdicts.add(judge_original(noisy, "plan", ["baseline"]).verdict)
    assert verdicts == {Verdict.NOT_SLOWER}


@pytest.mark.parametrize(
    ("plan_s", "verdict"), [(12.5e-6, Verdict.NOT_SLOWER), (20e-6, Verdict.SLOWER)]
)
def test_calls_of_microseconds_do_not_refuse_the_original_file(plan_s, verdict):
    """Handing on outputs costs a few microseconds; a plan of regions has no such allowance."""
    comparison = compared({"plan": plan_s, "baseline": 8.6e-6}, Independent(0, 0.02))
    assert judge_original(comparison, "plan", ["baseline"]).verdict is verdict
    assert judge(comparison, "plan", ["baseline"], NOISE).verdict is Verdict.SLOWER

"""The decision of the gate: the executable that ships, the reason, and the measurements behind it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collage.verify.accuracy_checker import Golden
from collage.verify.accuracy_samples import Errors
from collage.verify.interleaved_benchmark import Latency
from collage.verify.plan_executable import PlanExecutable
from collage.verify.verdict import RatioInterval, Verdict


@dataclass(frozen=True)
class OriginalPlans:
    """The original file as a plan.

    Attributes:
        baselines: names of the frameworks that can run it inside an executable; default none.
        assemble: builder of the plan from a baseline's name; raises BackendError where the file or the
            framework does not allow it. None without baselines.
    """

    baselines: frozenset[str] = frozenset()
    assemble: Callable[[str], PlanExecutable] | None = None


NO_ORIGINALS = OriginalPlans()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The executable that ships, and why.

    Attributes:
        chosen: executable that ships.
        latency: latency of `chosen` in the final round.
        baselines: latencies of the original frameworks by name.
        latencies: latencies of all complete plans by name; those of the `finalists` come from one
            comparison, the others from rounds at other times.
        rejected: reasons of rejected plans by name.
        verdict: proven relation of `chosen` to the frameworks.
        reason: the decision in words.
        ratios: ratios of `chosen` to each framework that ran.
        errors: largest errors of all checked targets by name; empty without an error budget.
        exempt: reasons of frameworks that do not count: beyond the error budget, or wrong numbers.
        finalists: names of the plans of the final round.
        golden: outputs of the original-file plan, where that ships; else None.
        draws: whether outputs of the model depend on random numbers.
    """

    chosen: PlanExecutable
    latency: Latency
    baselines: Mapping[str, Latency]
    latencies: Mapping[str, Latency]
    verdict: Verdict
    reason: str
    rejected: Mapping[str, str] = field(default_factory=dict)
    ratios: Mapping[str, RatioInterval] = field(default_factory=dict)
    errors: Mapping[str, Errors] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)
    finalists: tuple[str, ...] = ()
    golden: Golden | None = None
    draws: bool = False

    @property
    def is_deterministic(self) -> bool:
        """Whether two calls give equal outputs."""
        return not self.draws if self.golden is None else self.golden.deterministic

    @property
    def passed(self) -> bool:
        """Whether `chosen` is proven as fast as every original framework."""
        return self.verdict is Verdict.NOT_SLOWER

"""The gate: only an executable with the right numbers that is not slower than a single toolchain ships.

Plans are first compared with each other, then the best one meets the original frameworks, all
interleaved. Single-toolchain plans are among the plans, so where mixing does not pay, the best of
them is what ships. Speed is judged on ratios taken round by round; a ratio within `NOISE` of 1, or
whose interval reaches 1, is not "slower".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from collage.errors import GateError, MeasureError
from collage.frontend import Function
from collage.verify.latency import Contender, Latency, compare_latency, ratio, run_once
from collage.verify.numerics import compare_outputs

NOISE = 0.02
SCREEN_S = 1.0

OnRound = Callable[[int, int], None]


@dataclass(frozen=True)
class PlanExecutable:
    """An assembled plan: `single` names the one backend it uses, "" for a mix."""

    name: str
    path: Path
    predicted_s: float
    single: str = ""


@dataclass(frozen=True)
class Decision:
    """What ships and why; `latencies` hold every contender that was compared whole."""

    chosen: PlanExecutable
    latency: Latency
    baselines: Mapping[str, Latency]
    latencies: Mapping[str, Latency]
    rejected: Mapping[str, str]
    passed: bool
    reason: str


def original_outputs(
    model: Path, function: Function, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original file in ONNX Runtime, fp32, with its basic optimisations only."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = list(function.graph.outputs)
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


@dataclass(frozen=True)
class Gate:
    """Settings of one decision."""

    model: Path
    threads: int
    seconds_each: float
    work_dir: Path
    on_round: OnRound | None = None

    def decide(
        self,
        function: Function,
        plans: Sequence[PlanExecutable],
        inputs: dict[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
    ) -> Decision:
        """Choose the executable that ships.

        Args:
            function: the function whose plans these are.
            plans: the assembled plans, single-toolchain ones included.
            inputs: input arrays in the function's order.
            expected: the original model's outputs.

        Raises:
            GateError: no plan computes the model's numbers; says for each what differs.
        """
        right, rejected = self._right(function, plans, inputs, expected)
        if not right:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected.items())
            raise GateError(f"no executable computes the numbers of the original model: {reasons}")
        latencies = self._screen(right, inputs)
        best = sorted(right, key=lambda plan: latencies[plan.name].seconds)[:2]
        baselines = [
            Contender("onnxruntime", "onnxruntime", self.model),
            Contender("openvino", "openvino", self.model),
        ]
        finals = [Contender(plan.name, "executable", plan.path) for plan in best] + baselines
        final = compare_latency(
            finals, inputs, self.threads, self.seconds_each, self.work_dir, self.on_round
        )
        chosen = min(best, key=lambda plan: (final[plan.name].seconds, plan.name))
        passed, reason = judge(chosen, final, [contender.name for contender in baselines])
        return Decision(
            chosen,
            final[chosen.name],
            {contender.name: final[contender.name] for contender in baselines},
            latencies | {name: final[name] for name in (plan.name for plan in best)},
            rejected,
            passed,
            reason,
        )

    def _right(
        self,
        function: Function,
        plans: Sequence[PlanExecutable],
        inputs: dict[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
    ) -> tuple[list[PlanExecutable], dict[str, str]]:
        right, rejected = [], {}
        softmax = softmax_outputs(function)
        for plan in plans:
            contender = Contender(plan.name, "executable", plan.path)
            try:
                results = run_once(contender, inputs, self.threads, self.work_dir)
            except MeasureError as error:
                rejected[plan.name] = str(error)
                continue
            actual = dict(zip(function.graph.outputs, results, strict=True))
            checks = compare_outputs(expected, actual, softmax, quantised=is_quantised(function))
            failed = [check for check in checks if not check.passed]
            if failed:
                rejected[plan.name] = ", ".join(f"{c.name}: {c.reason}" for c in failed)
            else:
                right.append(plan)
        return right, rejected

    def _screen(
        self, plans: Sequence[PlanExecutable], inputs: dict[str, np.ndarray]
    ) -> dict[str, Latency]:
        contenders = [Contender(plan.name, "executable", plan.path) for plan in plans]
        found = compare_latency(
            contenders, inputs, self.threads, SCREEN_S, self.work_dir, self.on_round
        )
        dead = {name: latency for name, latency in found.items() if latency.reason}
        return {name: latency for name, latency in found.items() if name not in dead} | {
            name: Latency(math.inf, reason=latency.reason) for name, latency in dead.items()
        }


def is_quantised(function: Function) -> bool:
    """Tell whether the function converts between floats and small integers."""
    return any("Quantize" in node.op or "Integer" in node.op for node in function.graph.nodes)


def softmax_outputs(function: Function) -> frozenset[str]:
    """Name the outputs that a softmax makes, directly or through views."""
    views = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose"}
    graph, found = function.graph, set()
    for output in graph.outputs:
        value = output
        while value in graph.producer and graph.nodes[graph.producer[value]].op in views:
            value = graph.nodes[graph.producer[value]].inputs[0]
        if value in graph.producer and graph.nodes[graph.producer[value]].op == "Softmax":
            found.add(output)
    return frozenset(found)


def judge(
    chosen: PlanExecutable, final: Mapping[str, Latency], baselines: Sequence[str]
) -> tuple[bool, str]:
    """Tell whether the chosen plan is slower than a baseline beyond noise, and put it into words."""
    for name in baselines:
        if final[name].reason:
            continue
        times = ratio(final[chosen.name], final[name])
        if times > 1 + NOISE and _low(final[chosen.name], final[name]) > 1:
            return False, f"{(times - 1) * 100:.1f} % slower than {name} on the original file"
    what = f"{chosen.single} alone is the fastest" if chosen.single else "the mix is the fastest"
    return True, f"outputs equal to the original model's; {what}"


def _low(numerator: Latency, denominator: Latency) -> float:
    """Lower end of the 95 % interval of the round-by-round ratio's median."""
    ratios = sorted(a / b for a, b in zip(numerator.rounds, denominator.rounds, strict=True))
    spread = 0.98 * math.sqrt(len(ratios))
    return ratios[max(0, math.floor((len(ratios) - 1) / 2 - spread))]

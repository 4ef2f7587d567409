"""A report as a compile makes it: a small convolutional network with skips, four backends."""

import random

from collage.bundle.manifest import Ratio
from collage.report.data import (
    Alternative,
    CandidateState,
    FunctionReport,
    GraphNode,
    InvalidCandidate,
    MeasuredPlan,
    NodeRest,
    PeakRates,
    RegionReport,
    ReportData,
    TensorInfo,
    UnmeasuredCandidate,
)
from collage.report.summary import (
    CandidateCounts,
    FunctionSummary,
    GateResult,
    Latencies,
    ModelFile,
    Optimality,
    PlannedRegion,
    StageSeconds,
    Summary,
)
from collage.verify.verdict import Verdict

BLOCK = ("Conv", "HardSwish", "Conv", "GlobalAveragePool", "Conv", "Relu", "Conv", "HardSigmoid",
         "Mul", "Conv", "Add")  # fmt: skip
"""A squeeze-excite block: 8 reads 2 and 7, 10 reads 9 and the block's input."""

CUTS = (("onednn", 0, 3), ("tvm", 3, 9), ("openvino", 9, 11))


def sample_report(blocks: int = 12, seed: int = 0, hostile: str = "") -> ReportData:
    """Build a report; `hostile` is put wherever a model's author, or a library, chooses the text."""
    rng = random.Random(seed)
    nodes = _nodes(blocks, hostile)
    regions = _regions(blocks, rng, hostile)
    predicted_s = sum(region.predicted_s or 0.0 for region in regions)
    function = FunctionReport(
        name="main" + hostile,
        inputs=(TensorInfo(name="x" + hostile, type="float32[1, 3, 480, 480]"),),
        outputs=(TensorInfo(name="sigmoid_0.tmp_0", type="float32[1, 1, 480, 480]"),),
        nodes=nodes,
        regions=regions,
        invalid=_invalid(blocks, hostile),
        unmeasured=_unmeasured(blocks, hostile),
        plans=_plans(predicted_s),
        considered=tuple(alternative for region in regions for alternative in region.alternatives),
        rest=(NodeRest(node=0, backend="tvm", state=CandidateState.VALID, count=7),),
    )
    return ReportData(
        summary=_summary(function, predicted_s, hostile),
        model="ch_PP-OCRv4_det.onnx" + hostile,
        functions=(function,),
        environment={"cpu": "Example CPU 3.0 GHz" + hostile, "onnxruntime": "1.31.0",
                     "openvino": "2026.4.0", "tvm": "0.27.0"},
        notes=("3 nodes of ConvInteger have no Relax body: only onnxruntime takes them" + hostile,),
        peaks=PeakRates(flops_per_s=2e11, bytes_per_s=2e11, memory_bytes_per_s=3e10),
    )  # fmt: skip


def _nodes(blocks: int, hostile: str) -> tuple[GraphNode, ...]:
    before: list[tuple[int, ...]] = []
    for block in range(blocks):
        first = block * len(BLOCK)
        for place in range(len(BLOCK)):
            sources = [first + place - 1] if first + place else []
            if place == 8:
                sources.append(first + 2)
            if place == 10 and block:
                sources.append(first - 1)
            before.append(tuple(sources))
    after: list[list[int]] = [[] for _ in before]
    for target, sources in enumerate(before):
        for source in sources:
            after[source].append(target)
    return tuple(
        GraphNode(
            index=index,
            name=f"block.{index // len(BLOCK)}/{BLOCK[index % len(BLOCK)]}{hostile}",
            op=BLOCK[index % len(BLOCK)] + hostile,
            inputs=sources,
            outputs=tuple(after[index]),
            types=("float32[1, 96, 120, 120]",),
        )
        for index, sources in enumerate(before)
    )


def _regions(blocks: int, rng: random.Random, hostile: str) -> tuple[RegionReport, ...]:
    regions = []
    for block in range(blocks):
        for backend, start, stop in CUTS:
            nodes = tuple(block * len(BLOCK) + place for place in range(start, stop))
            cost_s = rng.uniform(8e-5, 9e-4)
            regions.append(
                RegionReport(
                    nodes=nodes,
                    ops=tuple(BLOCK[start:stop]),
                    backend=backend,
                    label="conv_bias_act" + hostile,
                    alone_s=cost_s * 0.92,
                    predicted_s=cost_s,
                    low_s=cost_s * 0.98,
                    high_s=cost_s * 1.03,
                    measured_s=cost_s * rng.uniform(0.95, 1.12),
                    bound_s=cost_s * 0.7,
                    limit="flops",
                    moved_bytes=1_000_000,
                    flops=20_000_000,
                    alternatives=_alternatives(nodes, backend, cost_s, hostile),
                )
            )
    return tuple(regions)


def _alternatives(
    nodes: tuple[int, ...], backend: str, cost_s: float, hostile: str
) -> tuple[Alternative, ...]:
    chosen = Alternative(backend=backend, nodes=nodes, state=CandidateState.VALID, cost_s=cost_s,
                         low_s=cost_s * 0.98, high_s=cost_s * 1.03, regret_s=0.0, chosen=True)  # fmt: skip
    slower = tuple(
        Alternative(backend=rival, nodes=nodes, state=CandidateState.VALID, cost_s=cost_s * factor,
                    low_s=cost_s * factor * 0.97, high_s=cost_s * factor * 1.04,
                    regret_s=cost_s * (factor - 1))
        for rival, factor in (("onnxruntime", 1.21), ("openvino", 1.33), ("tvm", 2.4))
        if rival != backend
    )  # fmt: skip
    invalid = Alternative(backend="onednn", variant="winograd", nodes=nodes[:1],
                          state=CandidateState.INVALID,
                          reason="wrong numbers: 0.31 off at most, 0.001 allowed" + hostile)  # fmt: skip
    unknown = Alternative(backend="onnxruntime", nodes=(*nodes, nodes[-1] + 1),
                          state=CandidateState.UNMEASURED,
                          reason="its lower bound is 210 µs above the plan")  # fmt: skip
    return (chosen, *slower, invalid, unknown)


def _invalid(blocks: int, hostile: str) -> tuple[InvalidCandidate, ...]:
    return tuple(
        InvalidCandidate(
            backend="openvino",
            nodes=(block * len(BLOCK) + 7,),
            ops=("HardSigmoid",),
            reason="the worker ended with SIGSEGV" + hostile,
        )
        for block in range(blocks)
    )


def _unmeasured(blocks: int, hostile: str) -> tuple[UnmeasuredCandidate, ...]:
    return tuple(
        UnmeasuredCandidate(
            backend="onnxruntime",
            nodes=tuple(range(block * len(BLOCK), block * len(BLOCK) + 6)),
            bound_s=4e-4,
            reason="no plan with it can beat the chosen one: its lower bound is too high" + hostile,
        )
        for block in range(blocks)
    )


def _plans(predicted_s: float) -> tuple[MeasuredPlan, ...]:
    return (
        MeasuredPlan(name="best-1", predicted_s=predicted_s, measured_s=predicted_s * 1.03,
                     low_s=predicted_s * 1.02, high_s=predicted_s * 1.04, chosen=True),
        MeasuredPlan(name="all-onnxruntime", predicted_s=predicted_s * 1.3,
                     measured_s=predicted_s * 1.29, low_s=predicted_s * 1.28, high_s=predicted_s * 1.3),
        MeasuredPlan(name="onnxruntime", measured_s=predicted_s * 1.31, low_s=predicted_s * 1.29,
                     high_s=predicted_s * 1.32, baseline=True),
        MeasuredPlan(name="openvino", reason="HardSigmoid is not supported", baseline=True),
    )  # fmt: skip


def function_summary(name: str, predicted_s: float, hostile: str = "") -> FunctionSummary:
    """Build what came of one function that is proven to be faster."""
    return FunctionSummary(
        function=name,
        latency=Latencies(
            collage_s=predicted_s * 1.03,
            baselines={"onnxruntime": predicted_s * 1.31, "openvino": None},
            baseline_reasons={"openvino": "HardSigmoid is not supported" + hostile},
        ),
        speedup_over_best=1.31 / 1.03,
        predicted_s=predicted_s,
        verdict=Verdict.NOT_SLOWER,
        reason="the mix is the fastest" + hostile,
        ratios={"onnxruntime": Ratio(ratio=0.79, low=0.78, high=0.8)},
        optimality=Optimality(plan_s=0.98 * predicted_s, bound_s=0.49 * predicted_s, proven=False),
    )


def _summary(function: FunctionReport, predicted_s: float, hostile: str) -> Summary:
    return Summary(
        models=(ModelFile(file="ch_PP-OCRv4_det.onnx", sha256="4a3f" * 16),),
        backends=("tvm", "onednn", "onnxruntime", "openvino"),
        threads=1,
        functions=(function_summary(function.name, predicted_s, hostile),),
        notes=("Loop_4 (Loop) stays whole: its body reads strings" + hostile,),
        speedup_over_best=1.31 / 1.03,
        plan=tuple(
            PlannedRegion(function=function.name, nodes=region.nodes, ops=region.ops,
                          backend=region.backend, label=region.label, cost_s=region.predicted_s)
            for region in function.regions
        ),
        candidates=CandidateCounts(enumerated=1240, unique=316, measured=84, cached=12, invalid=9),
        seconds=StageSeconds(import_s=1.2, enumerate=0.4, measure=61.0, search=0.8, assemble=7.5,
                             verify=24.0),
        gate=GateResult(passed=True, reason="1.27 times as fast as onnxruntime; outputs equal" + hostile),
        bundle="ch_PP-OCRv4_det.collage" + hostile,
    )  # fmt: skip

"""Compile the model set and compare each bundle with onnxruntime and openvino in fresh processes.

    python -m benchmarks.models [--models resnet18,ppocr_cls] [--threads 1]

Every model is compiled cold (in its own store) and warm; then the saved bundle is measured again, interleaved
with the original frameworks, each in its own process. The comparison runs SETS times with new processes, and
the median of the sets counts: two processes with the same program differ by some per cent from start to end.
Writes one row a model with the machine and the versions. With `--models` the rows of further models stay
unchanged.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from benchmarks.model_set import BenchmarkModel, chosen_models, model_options, store_of
from benchmarks.results import Facts, machine, revisions, write_rows

MODELS_HEADER = (
    "| model | collage ms | onnxruntime ms | openvino ms | speedup over best | predicted / measured "
    "| isolated / measured | predicted / fresh | speed factor | measured of unique | cold s | warm s "
    "| peak GB | regions | plan |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
SETS, SET_S = 3, 3.0
"""Number of comparisons in fresh processes, and the seconds of each."""


def measure(
    model: BenchmarkModel, work: Path, threads: int, extra: list[str], *, warm: bool = True
) -> Facts:
    """Compile cold, and warm if `warm`, then compare the last bundle; return the facts of one row."""
    store, bundle = store_of(model, work), work / f"{model.name}.collage"
    command = [
        sys.executable, "-m", "collage", "compile", str(model.path), "-o", str(bundle),
        "--threads", str(threads), "--cache-dir", str(store), "--json", "--quiet",
        *model.arguments, *extra,
    ]  # fmt: skip
    cold, cold_s, peak_bytes = _timed(command)
    again, warm_s, _ = _timed(command) if warm else (cold, cold_s, 0)
    return {
        "model": model.name, "compile": flat(cold) | {"bundle": bundle.name},
        "cold_s": cold_s, "warm_s": warm_s,
        "warm_measured": again["candidates"]["measured"], "bench": _compared(bundle, model.path),
        "peak_bytes": peak_bytes, "plan": again["plan"], "predicted_s": flat(again)["predicted_s"],
        "gate_baselines": flat(again)["latency"]["baselines"],
    }  # fmt: skip


def flat(summary: Facts) -> Facts:
    """Return the summary of a model of one function, with the results of this function at top level."""
    (function,) = summary["functions"]
    function_facts = {
        name: function[name] for name in ("latency", "predicted_s", "alone_s", "pace")
    }
    return {name: value for name, value in summary.items() if name != "functions"} | function_facts


def _compared(bundle: Path, model: Path) -> Facts:
    """Compare the bundle with the original frameworks; return the median of the sets by name."""
    command = [
        sys.executable, "-m", "collage", "bench", str(bundle), "--model", str(model),
        "--seconds", str(SET_S), "--json",
    ]  # fmt: skip
    sets = [json.loads(_output(command))["functions"]["main"] for _ in range(SETS)]
    return {name: _median([comparison[name] for comparison in sets]) for name in sets[0]}


def _median(results: Sequence[Facts]) -> Facts:
    """Return the medians of one target over the sets; the failed result if it failed in a set."""
    failed = next((result for result in results if result["reason"]), None)
    if failed is not None:
        return failed
    return {
        "seconds": statistics.median(result["seconds"] for result in results),
        "times": statistics.median(result["times"] for result in results), "reason": "",
    }  # fmt: skip


def _timed(command: list[str]) -> tuple[dict, float, int]:  # type: ignore[type-arg]
    """Run a command; return its document, wall seconds, and peak bytes of all its processes (PSS)."""
    start, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, text=True)
        while process.poll() is None:
            peak = max(peak, _tree_bytes(process.pid))
            time.sleep(0.5)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
        output.seek(0)
        return json.load(output), time.monotonic() - start, peak


def _tree_bytes(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.NoSuchProcess:
        pass
    return total


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}")
    return done.stdout


def row(facts: Facts) -> tuple[str, float]:
    """Format one table row; also return the speedup over the best framework."""
    bench, cold = facts["bench"], facts["compile"]
    seconds = {name: result["seconds"] for name, result in bench.items()}
    speedup = min(speedups(bench).values())
    cells = [
        facts["model"],
        *(_ms(seconds.get(name)) for name in ("collage", "onnxruntime", "openvino")),
        f"{speedup:.3f}",
        *map(_text, (*_ratios(facts), cold.get("pace"))),
        f"{cold['candidates']['measured']} / {cold['candidates']['unique']}",
        f"{facts['cold_s']:.0f}", f"{facts['warm_s']:.0f} ({facts['warm_measured']} measured)",
        f"{facts['peak_bytes'] / 1e9:.1f}", str(len(facts["plan"])),
        backend_counts(facts["plan"]),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |", speedup


def _ratios(facts: Facts) -> tuple[float | None, ...]:
    """Return three ratios of predicted over measured latencies.

    The first two are the prediction of the cold compile and its sum of isolated costs, over the latency in
    its gate. The third is the prediction of the last compile, scaled by the speed factor of the fresh
    processes, over the bundle's latency in these.
    """
    cold = facts["compile"]
    gate_s, fresh_s = cold["latency"]["collage_s"], facts["bench"]["collage"]["seconds"]
    predicted_s, alone_s = cold.get("predicted_s"), cold.get("alone_s")
    last_s = facts.get("predicted_s", predicted_s)
    if last_s:
        last_s *= _speed_factor(facts)
    pairs = ((predicted_s, gate_s), (alone_s, gate_s), (last_s, fresh_s))
    return tuple(seconds / measured_s if seconds else None for seconds, measured_s in pairs)


def _speed_factor(facts: Facts) -> float:
    """Return the speed factor of the fresh processes relative to the last gate, from the frameworks."""
    bench, gate_s = facts["bench"], facts.get("gate_baselines", {})
    paces = [
        bench[name]["seconds"] / seconds
        for name, seconds in gate_s.items()
        if seconds and bench[name]["seconds"]
    ]
    return statistics.median(paces) if paces else 1.0


def _text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def speedups(bench: dict) -> dict[str, float]:  # type: ignore[type-arg]
    """Return the speedup of the bundle over each framework, the median over rounds."""
    return {
        name: result["times"]
        for name, result in bench.items()
        if name != "collage" and result["times"]
    }


def backend_counts(plan: list[dict]) -> str:  # type: ignore[type-arg]
    """Write the number of regions of each backend, with reduced regions separate."""
    counts: dict[str, int] = {}
    for region in plan:
        name = f"{region['backend']} {region.get('precision', '')}".rstrip()
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1e3:.2f}" if seconds else "refused"


def main() -> None:
    parser = model_options(__doc__)
    parser.add_argument("extra", nargs="*", help="further options of `collage compile`, after --")
    arguments = parser.parse_args()
    measured = (
        measure(model, arguments.work, arguments.threads, arguments.extra)
        for model in chosen_models(arguments.work, arguments.models)
    )
    write_rows(arguments, f"models-{arguments.threads}", measured, document)


def document(all_facts: list[Facts], arguments: Namespace) -> str:
    """Write the table of all models with the machine and the geometric mean."""
    threads = arguments.threads
    rows, speedups = zip(*map(row, all_facts), strict=True)
    mean = geometric_mean(speedups)
    predicted, alone, fresh = zip(*map(_ratios, all_facts), strict=True)
    factors = [facts["compile"].get("pace") for facts in all_facts]
    unscaled = [
        ratio / factor for ratio, factor in zip(predicted, factors, strict=True) if ratio and factor
    ]
    return (
        f"## {'One thread' if threads == 1 else f'{threads} threads'}\n\n"
        f"`python -m benchmarks.models --threads {threads}` on {machine()}{revisions(all_facts)}.\n"
        "Latencies are medians of interleaved rounds in fresh processes; the speedup is the median of the\n"
        "ratios of every round, which cancels what the machine does to all in it. Predictions sum up what\n"
        "the kernels cost in context, after refinement, and are compared with the gate that followed and\n"
        "with the saved bundle in fresh processes afterwards; sums of isolated costs stand between.\n"
        "Predictions are scaled by the machine's speed factor. In the gate a plan of the rounds before\n"
        "measures it (factor 1.1: it took 10 % longer); in fresh processes the frameworks of the gate do.\n\n"
        + "\n".join([MODELS_HEADER, *rows])
        + f"\n\nGeometric mean of the speedup over the best framework: **{mean:.3f}** "
        f"({len(rows)} models, lowest {min(speedups):.3f})."
        f"{_off('Predictions', predicted)}{_off('Without the speed factor they', unscaled)}"
        f"{_off('Sums of kernels alone', alone)}"
        f"{_off('Against fresh processes predictions', fresh)}\n"
    )


def _off(subject: str, ratios: Iterable[float | None]) -> str:
    """Write the relative errors of predictions, "" without predictions."""
    off = [abs(ratio - 1) for ratio in ratios if ratio is not None]
    if not off:
        return ""
    return f" {subject} are off by {statistics.median(off):.1%} at the median and {max(off):.1%} at most."


if __name__ == "__main__":
    main()

"""Compile the model set and compare each bundle with onnxruntime and openvino in fresh processes.

    python -m benchmarks.models [--models resnet18,ppocr_cls] [--threads 1]

Every model is compiled cold (in a store of its own) and warm, then the saved bundle is measured again,
interleaved with the original frameworks, each in a process of its own. That is done SETS times, with new
processes, and the median of the sets counts: two processes that run the same differ by some per cent from
start to end. Writes one row a model with the machine and the versions. With `--models` the rows of the
others stay as they are.
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

HEADER = (
    "| model | collage ms | onnxruntime ms | openvino ms | speedup over best | predicted / measured "
    "| alone / measured | predicted / fresh | pace | measured of unique | cold s | warm s | peak GB "
    "| regions | plan |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
SETS, SET_S = 3, 3.0
"""How often fresh processes are compared, and the seconds of each time."""


def measure(
    model: BenchmarkModel, work: Path, threads: int, extra: list[str], *, warm: bool = True
) -> Facts:
    """Compile, and again where `warm`, then compare the last bundle; returns the facts of one row."""
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
    """Return the summary of a model of one function with what came of this function beside the rest."""
    (function,) = summary["functions"]
    told = {name: function[name] for name in ("latency", "predicted_s", "alone_s", "pace")}
    return {name: value for name, value in summary.items() if name != "functions"} | told


def _compared(bundle: Path, model: Path) -> Facts:
    """Compare the bundle with the original frameworks; returns the median of the sets by name."""
    command = [
        sys.executable, "-m", "collage", "bench", str(bundle), "--model", str(model),
        "--seconds", str(SET_S), "--json",
    ]  # fmt: skip
    sets = [json.loads(_output(command))["functions"]["main"] for _ in range(SETS)]
    return {name: _median([one[name] for one in sets]) for name in sets[0]}


def _median(found: Sequence[Facts]) -> Facts:
    """Return the medians of what one contender took in every set; how it failed, where it did."""
    failed = next((one for one in found if one["reason"]), None)
    if failed is not None:
        return failed
    return {
        "seconds": statistics.median(one["seconds"] for one in found),
        "times": statistics.median(one["times"] for one in found), "reason": "",
    }  # fmt: skip


def _timed(command: list[str]) -> tuple[dict, float, int]:  # type: ignore[type-arg]
    """Run a command; returns its document, wall seconds, and peak bytes of all its processes (PSS)."""
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
    """Format one table row; also returns the speedup over the best framework."""
    bench, cold = facts["bench"], facts["compile"]
    seconds = {name: found["seconds"] for name, found in bench.items()}
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
    """Return what was predicted over what was measured.

    The cold compile's prediction and its sum of kernels alone over the latency in its gate, and the last
    compile's prediction, at the pace of the fresh processes, over the bundle's latency in these.
    """
    cold = facts["compile"]
    gate_s, fresh_s = cold["latency"]["collage_s"], facts["bench"]["collage"]["seconds"]
    predicted_s, alone_s = cold.get("predicted_s"), cold.get("alone_s")
    last_s = facts.get("predicted_s", predicted_s)
    if last_s:
        last_s *= _pace(facts)
    pairs = ((predicted_s, gate_s), (alone_s, gate_s), (last_s, fresh_s))
    return tuple(seconds / measured_s if seconds else None for seconds, measured_s in pairs)


def _pace(facts: Facts) -> float:
    """Return how many times as long as in the last gate the frameworks took in fresh processes."""
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
    """Return how many times as long as the bundle each framework that ran takes, round by round."""
    return {
        name: found["times"]
        for name, found in bench.items()
        if name != "collage" and found["times"]
    }


def backend_counts(plan: list[dict]) -> str:  # type: ignore[type-arg]
    """Write how many regions each backend has, those in less than float32 apart."""
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


def document(found: list[Facts], arguments: Namespace) -> str:
    """Write the table of all models with the machine and the mean."""
    threads = arguments.threads
    rows, speedups = zip(*map(row, found), strict=True)
    mean = geometric_mean(speedups)
    predicted, alone, fresh = zip(*map(_ratios, found), strict=True)
    paces = [facts["compile"].get("pace") for facts in found]
    unpaced = [ratio / pace for ratio, pace in zip(predicted, paces, strict=True) if ratio and pace]
    return (
        f"## {'One thread' if threads == 1 else f'{threads} threads'}\n\n"
        f"`python -m benchmarks.models --threads {threads}` on {machine()}{revisions(found)}.\n"
        "Latencies are medians of interleaved rounds in fresh processes; the speedup is the median of the\n"
        "ratios of every round, which cancels what the machine does to all in it. Predictions sum up what\n"
        "the kernels cost in place, after refinement, and are compared with the gate that followed and with\n"
        "the saved bundle in fresh processes afterwards; sums of what kernels took alone stand between.\n"
        "Predictions are told at the pace that the machine had then: in the gate another plan tells it,\n"
        "which was in the heats before (pace 1.1: it took 10 % longer), and in fresh processes the\n"
        "frameworks, which were in the gate.\n\n"
        + "\n".join([HEADER, *rows])
        + f"\n\nGeometric mean of the speedup over the best framework: **{mean:.3f}** "
        f"({len(rows)} models, lowest {min(speedups):.3f})."
        f"{_off('Predictions', predicted)}{_off('Without the pace they', unpaced)}"
        f"{_off('Sums of kernels alone', alone)}"
        f"{_off('Against fresh processes predictions', fresh)}\n"
    )


def _off(what: str, ratios: Iterable[float | None]) -> str:
    """Write how far predictions are from what was measured, "" where there are none."""
    off = [abs(ratio - 1) for ratio in ratios if ratio is not None]
    if not off:
        return ""
    return (
        f" {what} are off by {statistics.median(off):.1%} at the median and {max(off):.1%} at most."
    )


if __name__ == "__main__":
    main()

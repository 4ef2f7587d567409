"""Whole models on a GPU: compiled, checked, and timed against single toolchains, frameworks and PyTorch.

Each model is compiled in every type with the command line, in a process of its own; the bundle checks its
golden data, and is timed with CUDA graphs and without.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from benchmarks.model_set import ROOT
from benchmarks.models import flat
from collage.errors import CollageError
from collage.frontend import Function, import_model
from collage.frontend.float16 import retyped

KINDS = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
}
TF32 = "tf32"
"""A model in float32 with TF32 allowed in products, for every toolchain."""
GPU_HEADER = (
    "| model | dtype | Collage, us | without graphs | best single | over it | predicted / measured "
    "| onnxruntime CUDA | TensorRT | eager | compile | plan |\n" + "|---" * 12 + "|"
)

SINGLE = re.compile(r"^whole-(.+)-\d+$|^(.+)-only$")
"""Names of plans of one toolchain (`collage.search.plan_selection`)."""


@dataclass(frozen=True)
class CompileBudget:
    """Time limits of one model, in seconds: for measurements, and for a whole command; and workers."""

    measure_s: float = 40.0
    command_s: float = 240.0
    workers: int = 8


def in_dtype(model: Path, dtype: str, folder: Path) -> Path:
    """Write the folded model in another dtype; return the file."""
    function = import_model(model, work_dir=folder / f"{model.stem}-float32").functions[0]
    model_proto = onnx.load(function.simplified)
    del model_proto.metadata_props[:]
    path = folder / f"{model.stem}-{dtype}.onnx"
    onnx.save(
        retyped(model_proto, KINDS["float32"], KINDS["float32" if dtype == TF32 else dtype]), path
    )
    return path


def imported(model: Path, folder: Path) -> Function:
    """Import a file of `in_dtype` like a compile for a GPU."""
    return import_model(model, work_dir=folder / f"{model.stem}-work", keep_half=True).functions[0]


def row_of(name: str, dtype: str, model: Path, folder: Path, *, budget: CompileBudget) -> str:
    """Compile, check and time one model; return its row, or a row with the reason of a failure."""
    bundle, device = folder / f"{model.stem}.collage", "cuda"
    compile_ = [
        "compile", str(model), "-o", str(bundle), "--device", device, "--json", "--quiet",
        "--cache-dir", str(folder / "store"), "--effort", "quick", "--tune", "0s", "--refine", "0s",
        "--budget", f"{budget.measure_s:.0f}s", "--timeout", "120s", "--memory", "16GiB",
        "--workers", str(budget.workers), "--allow-slower",
    ]  # fmt: skip
    compile_ += ["--precision", "auto"] if dtype == TF32 else []
    try:
        summary = flat(_command(compile_, budget.command_s))
        report = json.loads((bundle / "report.json").read_text())["functions"][0]
        with_graphs = _command(["bench", str(bundle), "--json"], 60)["functions"]["main"]["seconds"]
        _command(["run", str(bundle), "--json"], 60)  # compares its golden data
        _command([*compile_, "--no-cuda-graphs"], budget.command_s)
        without = _command(["bench", str(bundle), "--json"], 60)["functions"]["main"]["seconds"]
    except CollageError as error:
        return f"| {name} | {dtype} |{' - |' * 9} {error} |"
    chosen = summary["latency"]["collage_s"]
    singles = singles_of(report, summary["backends"])
    best = min(singles, key=singles.get, default="") if singles else ""  # type: ignore[arg-type]
    speedup = f"{singles[best] / chosen:.2f}" if best else "-"
    torch = _torch(name, dtype, json.loads((bundle / "manifest.json").read_text())["functions"][0])
    cells = [
        name, dtype, f"{with_graphs * 1e6:.1f}", f"{without * 1e6:.1f}",
        f"{best} {singles[best] * 1e6:.1f}" if best else "none covers the model", speedup,
        f"{summary['predicted_s'] / chosen:.2f}" if summary["predicted_s"] else "-",
        *(_framework(summary["latency"], framework, dtype) for framework in ("onnxruntime-cuda", "tensorrt")),
        torch["eager"], torch["compile"], _plan(summary["plan"]),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def singles_of(report: dict, backends: Sequence[str]) -> dict[str, float]:  # type: ignore[type-arg]
    """Return the measured seconds of the best plan of each single toolchain."""
    seconds: dict[str, float] = {}
    for plan in report["plans"]:
        backend = SINGLE.sub(r"\1\2", plan["name"])
        if backend in backends and backend != plan["name"] and plan["measured_s"]:
            seconds[backend] = min(plan["measured_s"], seconds.get(backend, plan["measured_s"]))
    return seconds


def _framework(latency: dict, name: str, dtype: str) -> str:  # type: ignore[type-arg]
    """Return the gate's latency of ONNX Runtime on the original file as text."""
    name += f"-{TF32}" if dtype == TF32 else ""
    seconds = latency["baselines"].get(name)
    return f"{seconds * 1e6:.1f}" if seconds else latency["baseline_reasons"].get(name, "-")


def _plan(regions: Sequence[dict]) -> str:  # type: ignore[type-arg]
    counts: dict[str, int] = {}
    for region in regions:
        counts[region["backend"]] = counts.get(region["backend"], 0) + 1
    return ", ".join(f"{backend} {count}" for backend, count in sorted(counts.items()))


def _torch(name: str, dtype: str, function: dict) -> dict[str, str]:  # type: ignore[type-arg]
    """Return PyTorch's latencies of the same network as text."""
    signature = {
        tensor["name"]: (tensor["shape"], tensor["dtype"]) for tensor in function["inputs"]
    }
    command = [sys.executable, "-m", "benchmarks.gpu_torch", name, dtype, json.dumps(signature)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        result = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        result = {"eager": None, "compile": None, "reason": "did not end"}
    reason = result["reason"] or "-"
    return {
        way: f"{result[way] * 1e6:.1f}" if result[way] else reason for way in ("eager", "compile")
    }  # fmt: skip


def _command(arguments: Sequence[str], timeout_s: float) -> dict:  # type: ignore[type-arg]
    """Run `collage`; return its document. Raises CollageError with its message on failure."""
    command, start = [sys.executable, "-m", "collage", *arguments], time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CollageError(f"{arguments[0]} took longer than {timeout_s:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("collage:")]
        passed = time.monotonic() - start
        raise CollageError(f"{arguments[0]} failed after {passed:.0f} s: {(lines or ['?'])[0]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]

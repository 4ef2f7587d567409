"""A saved bundle beside the original frameworks: `collage bench --model`."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.nvidia.tensorrt.engine import ENGINES
from collage.entries import ModelEntry
from collage.errors import InputError
from collage.options import Options
from collage.runtime.loader import load
from collage.runtime.manifest import Manifest
from collage.verify import BenchmarkTarget, Latency, compare_latency
from collage.verify.baselines import original_frameworks


@dataclass(frozen=True)
class SavedFunction:
    """One function of a saved bundle, as a benchmark target with its golden inputs."""

    function: str
    entry: str
    manifest: Manifest
    target: BenchmarkTarget
    inputs: dict[str, np.ndarray]


def compare_bundle(
    bundle: Path, models: Sequence[ModelEntry], seconds: float
) -> dict[str, dict[str, Latency]]:
    """Compare a saved bundle with the original frameworks, interleaved, in fresh processes.

    Functions of entries without a model are left out.

    Frameworks may use reduced precision if the bundle may.

    Returns:
        Latencies by target's name, by function of the bundle.

    Raises:
        InputError: no bundle or no model at a path, or the bundle has no such entry.
    """
    saved_functions = saved_targets("collage", bundle)
    entries = list(dict.fromkeys(saved.entry for saved in saved_functions))
    paths = _paths_by_entry(models, entries)
    latencies = {}
    for saved in saved_functions:
        manifest, model = saved.manifest, paths.get(saved.entry)
        if model is None:
            continue
        frameworks = original_frameworks(
            model,
            may_reduce=manifest.precision is not None,
            device=manifest.device,
            engines=Options().store_dir / ENGINES,
        )
        with tempfile.TemporaryDirectory() as work_dir:
            latencies[saved.function] = compare_latency(
                [saved.target, *frameworks],
                saved.inputs,
                manifest.threads,
                seconds,
                work_dir=Path(work_dir),
            )
    return latencies


def _paths_by_entry(models: Sequence[ModelEntry], entries: Sequence[str]) -> dict[str, Path]:
    """Return the original files by entry; the only file is that of the only entry."""
    for model in models:
        if not model.path.is_file():
            raise InputError(f"{model.path}: no such file; give the original ONNX model")
    if len(models) == len(entries) == 1:
        return {entries[0]: models[0].path}
    for model in models:
        if model.name not in entries:
            raise InputError(
                f"the bundle has the entries {', '.join(entries)}, and none for {model.path}: write "
                "ENTRY=PATH"
            )
    return {model.name: model.path for model in models}


def saved_targets(name: str, bundle: Path) -> list[SavedFunction]:
    """Return the functions of a bundle as benchmark targets, all called `name`.

    Raises:
        InputError: no bundle at the path, or one without functions.
    """
    loaded = load(bundle)
    manifest = loaded.manifest
    if not manifest.functions:
        raise InputError(
            f"{bundle} runs the original model itself, so there is nothing to compare; "
            "`collage bench` without --model measures it"
        )
    executable = bundle / manifest.executable
    return [
        SavedFunction(
            signature.function,
            signature.entry,
            manifest,
            BenchmarkTarget(name, "executable", executable, signature, device=manifest.device),
            inputs=loaded.golden(signature.function)[0],
        )
        for signature in manifest.functions
    ]

"""A saved bundle beside the original frameworks: `collage bench --model`."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.nvidia.tensorrt.engine import ENGINES
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
    manifest: Manifest
    target: BenchmarkTarget
    inputs: dict[str, np.ndarray]


def compare_bundle(bundle: Path, model: Path, seconds: float) -> dict[str, dict[str, Latency]]:
    """Compare a saved bundle with the original frameworks, interleaved, in fresh processes.

    Frameworks may use reduced precision if the bundle may.

    Returns:
        Latencies by target's name, by function of the bundle.

    Raises:
        InputError: no bundle or no model at the path.
    """
    if not model.is_file():
        raise InputError(f"{model}: no such file; give the original ONNX model")
    latencies = {}
    for saved in saved_targets("collage", bundle):
        manifest = saved.manifest
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
            manifest,
            BenchmarkTarget(name, "executable", executable, signature, device=manifest.device),
            loaded.golden(signature.function)[0],
        )
        for signature in manifest.functions
    ]

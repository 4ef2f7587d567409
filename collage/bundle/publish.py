"""From decisions to a bundle: the manifest's facts are gathered here, and only here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage import __version__
from collage.bundle.manifest import (
    Cpu,
    Library,
    Manifest,
    MeasuredLatency,
    Precision,
    Provenance,
    Signature,
    Tensor,
)
from collage.bundle.save import cpu_features, save_bundle
from collage.frontend import Function, Model
from collage.runtime.plugin import library_distribution, library_file, library_version
from collage.verify.gate import Decision, is_quantised
from collage.verify.latency import Latency


@dataclass(frozen=True)
class Published:
    """One function of the bundle with the decision about it and its golden data."""

    function: Function
    decision: Decision
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Facts:
    """What the manifest says about the compile."""

    model: Model
    threads: int
    environment_digest: str
    seed: int
    libraries: frozenset[str]
    """Vendor libraries (plug-in names) that the chosen kernels call."""
    toolchains: Mapping[str, str]
    """Identities of the backends that made the chosen kernels, by name."""
    precision: Precision | None = None
    device: str = "cpu"
    compute_capability: str = ""


def publish(
    output: Path,
    executable: Path,
    functions: Sequence[Published],
    facts: Facts,
    texts: Mapping[str, str],
) -> Manifest:
    """Save the bundle. Raises BundleError when the folder cannot be written."""
    golden = {
        f"{one.function.name}/{side}/{name}": value
        for one in functions
        for side, values in (("input", one.inputs), ("output", one.expected))
        for name, value in values.items()
    }
    return save_bundle(
        output, executable, texts, golden, lambda files: _manifest(functions, facts, files)
    )


def _manifest(functions: Sequence[Published], facts: Facts, files: dict[str, str]) -> Manifest:
    cpu_model, features = cpu_features()
    first = functions[0].decision
    latency = {"collage": _latency(first.latency)}
    latency |= {name: _latency(found) for name, found in first.baselines.items()}
    failed = [one.decision.reason for one in functions if not one.decision.passed]
    return Manifest(
        functions=tuple(_signature(one.function) for one in functions),
        threads=facts.threads,
        cpu=Cpu(model=cpu_model, features=features),
        libraries={
            name: Library(
                distribution=library_distribution(name),
                version=library_version(name),
                file=library_file(name),
            )
            for name in sorted(facts.libraries)
        },
        latency=latency,
        gate_passed=not failed,
        gate_reason="; ".join(failed) or first.reason,
        provenance=Provenance(
            model_path=facts.model.path.name,
            model_sha256=facts.model.sha256,
            collage_version=__version__,
            environment_digest=facts.environment_digest,
            seed=facts.seed,
            toolchains=dict(facts.toolchains),
        ),
        precision=facts.precision,
        quantised=any(is_quantised(one.function) for one in functions),
        device=facts.device,
        compute_capability=facts.compute_capability,
        files=files,
    )


def _signature(function: Function) -> Signature:
    inputs, outputs = (
        tuple(_tensor(function, name) for name in names)
        for names in (function.graph.inputs, function.graph.outputs)
    )
    return Signature(function=function.name, inputs=inputs, outputs=outputs)


def _tensor(function: Function, name: str) -> Tensor:
    found = function.type_of(name)
    return Tensor(name=name, shape=found.shape, dtype=found.dtype)


def _latency(found: Latency) -> MeasuredLatency:
    if found.reason:
        return MeasuredLatency(seconds=None, reason=found.reason)
    return MeasuredLatency(seconds=found.seconds, low=found.low, high=found.high)

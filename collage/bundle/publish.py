"""Building of a bundle's manifest from the gate's decisions, and saving of the bundle."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from collage import __version__
from collage.bundle.manifest import (
    EXECUTABLE,
    Cpu,
    FallbackEntry,
    FunctionGateEntry,
    LibraryEntry,
    ManifestDocument,
    MeasuredLatency,
    NanRegion,
    OriginalModel,
    PaddedAxisEntry,
    PrecisionEntry,
    Provenance,
    Ratio,
    SignatureEntry,
    TensorEntry,
)
from collage.bundle.save import cpu_features, save_bundle
from collage.frontend import Function, Model
from collage.graph.quantisation import is_quantised
from collage.runtime.fallback import Fallback, fallback_document
from collage.runtime.function_names import MAIN
from collage.runtime.padding import PaddedAxis
from collage.runtime.plugin import library_distribution, library_file, library_version
from collage.runtime.target import Target
from collage.verify.decision import Decision
from collage.verify.interleaved_benchmark import Latency
from collage.verify.plan_executable import function_signature
from collage.verify.verdict import RatioInterval


@dataclass(frozen=True)
class BundledFunction:
    """One function of the bundle with the gate's decision and its golden data."""

    function: Function
    decision: Decision
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    entry: str = MAIN


@dataclass(frozen=True)
class BundledFallback:
    """An original model in a framework.

    Attributes:
        fallback: the model as the manifest has it.
        files: its files, by their names in the bundle.
        golden: golden data by name in the file; none beside functions, which have their own.
        gate: the gate's entry of a bundle without functions; None beside functions.
    """

    fallback: Fallback
    files: Sequence[Path]
    golden: Mapping[str, np.ndarray] = field(default_factory=dict)
    gate: FunctionGateEntry | None = None


@dataclass(frozen=True)
class BundleMetadata:
    """Metadata of the compile for the manifest."""

    models: Sequence[Model]
    threads: int
    environment_digest: str
    seed: int
    libraries: frozenset[str]
    """Vendor libraries of the chosen kernels, by plug-in name."""
    toolchains: Mapping[str, str]
    """Identities of the chosen kernels' backends, by name."""
    precision: PrecisionEntry | None = None
    nan: Sequence[NanRegion] = ()
    """Regions that hide or spread NaN."""
    device: Target = Target.CPU
    compute_capability: str = ""
    allow_slower: bool = False
    fallbacks: Sequence[BundledFallback] = ()
    """Original models for inputs that no function takes."""
    padding: Mapping[str, Sequence[PaddedAxis]] = field(default_factory=dict)
    """Axes that may be padded to a function's shapes, by entry."""
    defaults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the inputs whose defaults are constants of the functions, by entry."""


def publish(
    output: Path,
    executable: Path | None,
    functions: Sequence[BundledFunction],
    facts: BundleMetadata,
    *,
    generated_files: Mapping[str, str],
) -> ManifestDocument:
    """Save the bundle. Raises BundleError when the folder cannot be written."""
    golden = {
        f"{published.function.name}/{side}/{name}": value
        for published in functions
        for side, values in (("input", published.inputs), ("output", published.expected))
        for name, value in values.items()
    }
    for bundled in facts.fallbacks:
        golden |= bundled.golden
    return save_bundle(
        output,
        executable,
        generated_files,
        golden=golden,
        manifest=lambda files: _manifest(functions, facts, files),
        model_files=[file for bundled in facts.fallbacks for file in bundled.files],
        defaults={
            f"{model.entry}/{name}": value
            for model in facts.models
            for name, value in model.defaults.items()
        },
    )


def _manifest(
    functions: Sequence[BundledFunction], facts: BundleMetadata, files: dict[str, str]
) -> ManifestDocument:
    cpu_model, features = cpu_features()
    return ManifestDocument(
        executable=EXECUTABLE if functions else "",
        functions=tuple(map(_signature, functions)),
        padding={
            entry: tuple(PaddedAxisEntry.model_validate(asdict(axis)) for axis in axes)
            for entry, axes in facts.padding.items()
        },
        defaults=dict(facts.defaults),
        fallbacks=tuple(
            FallbackEntry.model_validate(fallback_document(bundled.fallback))
            for bundled in facts.fallbacks
        ),
        threads=facts.threads,
        cpu=Cpu(model=cpu_model, features=features),
        libraries={
            name: LibraryEntry(
                distribution=library_distribution(name),
                version=library_version(name),
                file=library_file(name),
            )
            for name in sorted(
                facts.libraries | {bundled.fallback.framework for bundled in facts.fallbacks}
            )
        },
        gate=tuple(
            [_gate(published.function.name, published.decision) for published in functions]
            + [bundled.gate for bundled in facts.fallbacks if bundled.gate]
        ),
        allow_slower=facts.allow_slower
        and not all(published.decision.passed for published in functions),
        provenance=Provenance(
            models=tuple(
                OriginalModel(path=model.path.name, sha256=model.sha256, entry=model.entry)
                for model in facts.models
            ),
            collage_version=__version__,
            environment_digest=facts.environment_digest,
            seed=facts.seed,
            toolchains=dict(facts.toolchains),
        ),
        precision=facts.precision,
        nan=tuple(facts.nan),
        quantised=any(is_quantised(published.function.graph) for published in functions),
        device=facts.device.value,
        compute_capability=facts.compute_capability,
        files=files,
    )


def _signature(published: BundledFunction) -> SignatureEntry:
    signature = function_signature(published.function, published.decision.chosen.kernel)
    inputs, outputs = (
        tuple(
            TensorEntry(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype)
            for tensor in tensors
        )
        for tensors in (signature.inputs, signature.outputs)
    )
    return SignatureEntry(
        function=signature.function,
        inputs=inputs,
        outputs=outputs,
        kernel=signature.kernel,
        entry=published.entry,
    )


def _gate(function: str, decision: Decision) -> FunctionGateEntry:
    latency = {"collage": _latency(decision.latency)}
    latency |= {name: _latency(baseline) for name, baseline in decision.baselines.items()}
    return FunctionGateEntry(
        function=function,
        original=decision.chosen.original,
        latency=latency,
        ratios={name: ratio_of(interval) for name, interval in decision.ratios.items()},
        verdict=decision.verdict,
        reason=decision.reason,
        deterministic=decision.is_deterministic,
    )


def ratio_of(interval: RatioInterval) -> Ratio:
    """Convert an interval to its document."""
    high = interval.high if math.isfinite(interval.high) else None
    return Ratio(ratio=interval.ratio, low=interval.low or None, high=high)


def _latency(latency: Latency) -> MeasuredLatency:
    if latency.reason:
        return MeasuredLatency(seconds=None, reason=latency.reason)
    return MeasuredLatency(seconds=latency.seconds, low=latency.low, high=latency.high)

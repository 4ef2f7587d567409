"""The compile of a bundle: every stage once, in order, for each function of each entry's model.

import, reference run, bodies of control flow, enumeration, measurement with search, tuning, complete plans
with the gate, bundle. Every stage is idempotent: costs are in the store under content keys and the search
has a checkpoint, so a compile after an interruption repeats no measurement. Functions of equal structure
share costs and checkpoint for the same reason: the second one is not searched again. No stage calls back
into this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from collage.bundle.publish import BundledFunction
from collage.entries import ModelEntry, options_of
from collage.errors import GateError, SearchError, UnprovenError
from collage.frontend import Function, Model
from collage.frontend.original_interface import read_interface
from collage.options import Options
from collage.pipeline.bodies import BodyPartitioner
from collage.pipeline.bundle_stage import CompiledFunction, build_bundle
from collage.pipeline.compile_context import CompileContext, open_compile_context
from collage.pipeline.entry_import import import_entries
from collage.pipeline.gate_stage import GateStageResult, gate_of, profile_chosen, refine_and_decide
from collage.pipeline.original_bundle import (
    OriginalEntry,
    compile_original,
    publish_originals,
    unlike_executable,
)
from collage.pipeline.original_plan import OriginalFile, with_original, without_plans
from collage.pipeline.other_shapes import check_pads
from collage.pipeline.plans import WholePlans
from collage.pipeline.search_stage import (
    enumerated_function,
    local_measurer,
    sampled,
    search_with_measurements,
)
from collage.pipeline.tuning import tune_and_search
from collage.report.progress import Progress
from collage.report.summary import Summary
from collage.search.enumeration import EnumeratedFunction
from collage.store.atomic_folder import check_output
from collage.verify.decision import Decision
from collage.verify.reference_run import AccuracySample, Samples


def compile_model(
    entries: Sequence[ModelEntry], options: Options, output: Path, progress: Progress | None = None
) -> Summary:
    """Compile the models of the entries into the bundle folder `output`.

    Raises:
        GateError: no executable has the right numbers, or none is proven as fast as every framework.
        CollageError: see `collage.errors`; nothing is written then.
    """
    check_output(output)
    with open_compile_context(options, progress) as context:
        originals, compilable = _run_originals(entries, context)
        if not compilable:
            return publish_originals(originals, output, context)
        check_pads(entries, options)
        names = [entry.name for entry in entries]
        with context.progress.stage("import"), context.seconds.of("import"):
            imported = import_entries(compilable, names, options, context.work_dir)
        parts = [_compile_entry(model, context) for model in imported]
        compiled = [function for _, functions in parts for function in functions]
        models = [model for model, _ in parts]
        return build_bundle(models, compiled, output, context, originals=originals)


def _run_originals(
    entries: Sequence[ModelEntry], context: CompileContext
) -> tuple[list[OriginalEntry], list[ModelEntry]]:
    """Run the models that no executable can run; return them, and the other entries."""
    originals: list[OriginalEntry] = []
    compilable: list[ModelEntry] = []
    for entry in entries:
        interface = read_interface(entry.path)
        if reason := unlike_executable(interface):
            options = options_of(context.options, entry.name, [entry.name for entry in entries])
            originals.append(
                compile_original(entry, interface, reason, options=options, context=context)
            )
        else:
            compilable.append(entry)
    return originals, compilable


def _compile_entry(
    model: Model, context: CompileContext
) -> tuple[Model, Sequence[CompiledFunction]]:
    """Compile the functions of an entry's model; also return the model with the notes of its compile."""
    earlier_notes = len(context.notes)
    bodies = BodyPartitioner(model, context)
    compiled = [_compile_function(model, function, bodies, context) for function in model.functions]
    notes = dict.fromkeys(context.notes[earlier_notes:])
    return replace(model, notes=(*model.notes, *notes)), compiled


def _compile_function(
    model: Model, function: Function, bodies: BodyPartitioner, context: CompileContext
) -> CompiledFunction:
    samples = sampled(model, function, context)
    bodies.partition(function, samples.reference_dir)
    enumerated = enumerated_function(function, context)
    measurer = local_measurer(function, samples.reference_dir, context)
    original = OriginalFile(model, function, context)
    try:
        search, checkpoint = search_with_measurements(enumerated, measurer, context)
    except SearchError as error:
        if not original.plans.baselines:
            raise
        result = _original_alone(enumerated, samples, original, context, error=error)
    else:
        search, is_new = tune_and_search(search, checkpoint, samples.reference_dir, context)
        result = refine_and_decide(
            model,
            search,
            samples,
            originals=original.plans,
            file=checkpoint,
            has_new_candidates=is_new,
            context=context,
        )
    return _compiled(result, original, samples, context)


def _original_alone(
    enumerated: EnumeratedFunction,
    samples: Samples,
    original: OriginalFile,
    context: CompileContext,
    *,
    error: SearchError,
) -> GateStageResult:
    """Let the original file ship where no plan of regions computes its numbers, as with random operators.

    Raises:
        SearchError: the original file does not run either.
    """
    search = without_plans(enumerated)
    function = enumerated.function
    with gate_of(original.model, function, samples, context) as gate:
        try:
            decision = gate.decide(
                function, (), samples.inputs, samples.expected, originals=original.plans
            )
        except GateError:
            raise error from None
    return GateStageResult(decision, search, WholePlans(search, context))


def _compiled(
    result: GateStageResult, original: OriginalFile, samples: Samples, context: CompileContext
) -> CompiledFunction:
    """Gather the results of a function. Raises UnprovenError where it must not ship."""
    decision, search = result.decision, result.search
    function, name = search.enumerated.function, decision.chosen.name
    if not decision.passed and not context.options.allow_slower:
        raise UnprovenError(_refusal(function, decision, context.options))
    golden = samples.golden or AccuracySample(samples.inputs, samples.expected)
    expected: Mapping[str, np.ndarray] = golden.expected
    if decision.golden is not None:
        expected = samples.golden.expected if samples.golden else decision.golden.outputs
        kernels = original.kernels[name]
        search, chosen = with_original(search, original.named[name], decision)
    else:
        kernels = result.plans.kernels[name]
        chosen = next(plan for plan in search.plans if plan.name == name)
    context.chosen.update(planned.backend for planned in kernels.kernels)
    return CompiledFunction(
        search=search,
        chosen=chosen,
        kernels=kernels,
        published=BundledFunction(
            function, decision, golden.inputs, expected, entry=original.model.entry
        ),
        measured_s=profile_chosen(kernels, decision, samples.inputs, context),
        speed_factor=result.speed_factor,
    )


def _refusal(function: Function, decision: Decision, options: Options) -> str:
    """Say what the gate refuses, and how to go on."""
    advice = "run it again on a machine that does less beside, or with a longer --verify"
    if not options.fallback:
        advice += ". Without --no-fallback the original file itself can ship"
    return (
        f"{function.name} is {decision.reason}; nothing was written. To go on, {advice}. --allow-slower "
        "writes the bundle all the same, for trying out: it is refused where bundles are published or served"
    )

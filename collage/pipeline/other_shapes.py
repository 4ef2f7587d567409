"""Answers to other shapes than the compiled ones: the original model, and padded axes.

A model whose inputs have several shapes gets the original model into its bundle, in the framework that is
fastest on the compiled shapes and on smaller ones, in turn. Its numbers must be those of the original. Axes
that the user declares paddable are tried with smaller shapes: what the executable computes with padding,
cropped, must be what the original model computes without.

An input with a default is a constant of the executable; the original model answers calls that give it. Where
the user gives values for such an input, the executable takes it (`collage.frontend.default_inputs`).
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collage.bundle.publish import BundledFallback, BundledFunction
from collage.entries import ModelEntry, options_of
from collage.errors import InputError, OptionError
from collage.frontend import Model
from collage.frontend.original_file import write_original
from collage.frontend.original_interface import OriginalInterface, read_interface
from collage.frontend.smaller_shapes import smaller_feeds
from collage.graph.quantisation import is_quantised
from collage.option_text import PadRequest, parse_pad
from collage.options import Options
from collage.pipeline.compile_context import CompileContext
from collage.pipeline.crops import ShapePair, check_requests, resolve_axes
from collage.pipeline.openvino_places import placed_in_openvino
from collage.runtime.fallback import FRAMEWORKS, Fallback
from collage.runtime.function_names import MAIN
from collage.runtime.padding import PaddedAxis
from collage.verify.numerics import compare_outputs
from collage.verify.plan_executable import function_signature
from collage.verify.shape_trial import Answer, Feed, TriedExecutable, try_feeds

REFERENCE = FRAMEWORKS[0]
"""Framework of the reference numbers; it also runs a fallback that no other one runs faster."""
MIN_OPENVINO_GAIN = 0.05
"""Least gain of another framework as the fallback."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OtherShapes:
    """What a bundle has for other shapes.

    Attributes:
        entry: entry of the model.
        fallback: the original model; None without.
        padding: axes that may be padded.
        note: why there is no fallback, or what becomes of inputs with a default; "" if there is nothing to
            say.
        defaults: names of the inputs whose defaults are constants of the executable.
    """

    entry: str = MAIN
    fallback: BundledFallback | None = None
    padding: tuple[PaddedAxis, ...] = ()
    note: str = ""
    defaults: tuple[str, ...] = ()


def check_pads(entries: Sequence[ModelEntry], options: Options) -> None:
    """Check the axes of `--pad`.

    Raises:
        OptionError: an axis is not open in its entry, or an output of the entry has no type.
    """
    names = [entry.name for entry in entries]
    for entry in entries:
        requests = [parse_pad(text) for text in options_of(options, entry.name, names).pad]
        if not requests:
            continue
        interface = read_interface(entry.path)
        if interface.untyped:
            raise OptionError(f"--pad {requests[0].text}: {interface.untyped}; leave --pad out")
        check_requests(requests, interface)


def answer_entries(
    models: Sequence[Model],
    functions: Sequence[BundledFunction],
    executable: Path,
    context: CompileContext,
    *,
    entries: Sequence[str],
) -> list[OtherShapes]:
    """Return the answers to other shapes of each entry's model. Errors as of `answer_other_shapes`.

    Args:
        models: models of the compiled entries.
        functions: their functions.
        executable: executable of the bundle.
        context: shared state of the compile.
        entries: names of all entries of the bundle.
    """
    return [
        answer_other_shapes(
            model,
            [function for function in functions if function.entry == model.entry],
            executable,
            options=options_of(context.options, model.entry, entries),
            context=context,
        )
        for model in models
    ]


def answer_other_shapes(
    model: Model,
    functions: Sequence[BundledFunction],
    executable: Path,
    *,
    options: Options,
    context: CompileContext,
) -> OtherShapes:
    """Choose the framework of an entry's original model, and try its padded axes.

    Args:
        model: model of the entry.
        functions: its functions.
        executable: executable of the bundle.
        options: options of the entry.
        context: shared state of the compile.

    Raises:
        OptionError: padding changes the original's numbers, or no crop follows an axis.
    """
    requests = [parse_pad(text) for text in options.pad]
    interface = read_interface(model.path)
    defaults = tuple(name for name in interface.defaults if name not in model.defaults)
    needs_fallback = (interface.is_dynamic or bool(defaults)) and _may_fall_back(options, context)
    untyped = f"no fallback for other shapes: {interface.untyped}" if interface.untyped else ""
    if untyped or not (needs_fallback or requests):
        notes = [untyped if needs_fallback else "", _default_note(defaults)]
        return OtherShapes(model.entry, note="; ".join(filter(None, notes)), defaults=defaults)
    folder = context.work_dir / "original"
    folder.mkdir(exist_ok=True)
    trial = Trial(
        interface,
        functions,
        write_original(model.path, folder, model.entry),
        context,
        entry=model.entry,
    )
    with context.progress.stage("verify"), context.seconds.of("verify"):
        padding = try_padding(requests, trial, executable) if requests else ()
        answers = choose_fallback(trial) if needs_fallback else OtherShapes()
    note = answers.note or _default_note(defaults, answers.fallback)
    return replace(answers, entry=model.entry, padding=padding, note=note, defaults=defaults)


def _may_fall_back(options: Options, context: CompileContext) -> bool:
    target = context.options.target
    return options.fallback and not options.exact_only and target.runs_original_file


@dataclass(frozen=True)
class Trial:
    """Calls of the original model on compiled and smaller shapes.

    Attributes:
        interface: inputs and outputs of the model.
        functions: compiled functions with their golden data.
        files: files of the model.
        context: shared state of the compile.
        entry: entry of the model.
    """

    interface: OriginalInterface
    functions: Sequence[BundledFunction]
    files: Sequence[Path]
    context: CompileContext
    entry: str

    @property
    def compiled_feeds(self) -> list[Feed]:
        """Golden inputs of the functions."""
        return [function.inputs for function in self.functions]

    @property
    def is_quantised(self) -> bool:
        return any(is_quantised(function.function.graph) for function in self.functions)

    @property
    def is_deterministic(self) -> bool:
        """Whether numbers of two calls can be compared."""
        decisions = [function.decision for function in self.functions]
        return all(
            decision.golden is None or decision.golden.deterministic for decision in decisions
        )

    def fallback(self, framework: str) -> Fallback:
        """Return the original model in a framework. Raises InputError if it reads another interface."""
        fallback = Fallback(
            framework,
            self.files[0].name,
            self.interface.inputs,
            self.interface.outputs,
            weights=self.files[1].name if len(self.files) > 1 else "",
            entry=self.entry,
        )
        return placed_in_openvino(fallback, self.files[0]) if framework == "openvino" else fallback

    def answers(self, way: Fallback | TriedExecutable, feeds: Sequence[Feed]) -> list[Answer]:
        """Answer the feeds in a process of its own. Raises InputError if it dies."""
        context = self.context
        return try_feeds(
            way,
            feeds,
            files_dir=self.files[0].parent,
            threads=context.threads,
            work_dir=context.work_dir,
        )

    def differs(self, expected: Answer, actual: Answer) -> str:
        """Return the first output with other numbers and the reason, or ""."""
        if not self.is_deterministic:
            return ""
        checks = compare_outputs(expected.outputs, actual.outputs, quantised=self.is_quantised)
        return next((f"{check.name}: {check.reason}" for check in checks if check.reason), "")


def choose_fallback(trial: Trial) -> OtherShapes:
    """Return the original model in the fastest framework that is allowed and has the original's numbers."""
    allowed = {backend.name for backend in trial.context.compatible_backends}
    feeds = [*trial.compiled_feeds, *smaller_feeds(trial.interface, trial.compiled_feeds)]
    tried, refusals = {}, {}
    for framework in FRAMEWORKS:
        if framework != REFERENCE and framework not in allowed:
            continue
        try:
            fallback = trial.fallback(framework)
            tried[framework] = fallback, trial.answers(fallback, feeds)
        except InputError as error:
            log.debug("the original model does not run in %s: %s", framework, error)
            refusals[framework] = str(error)
    reasons = refusals | {
        framework: _refusal(trial, answers, tried) for framework, (_, answers) in tried.items()
    }
    valid = {
        framework: fallback
        for framework, (fallback, _) in tried.items()
        if framework in allowed and not reasons[framework]
    }
    if not valid:
        return OtherShapes(note=_no_fallback(reasons, allowed))
    framework = min(valid, key=lambda name: _relative_latency(name, tried))
    return OtherShapes(fallback=BundledFallback(valid[framework], trial.files))


def try_padding(
    requests: Sequence[PadRequest], trial: Trial, executable: Path
) -> tuple[PaddedAxis, ...]:
    """Return the padded axes; what the executable computes with padding is compared.

    Raises:
        OptionError: an axis has no crop, or padding changes numbers.
    """
    axes = {(request.input, request.axis) for request in requests}
    compiled = trial.compiled_feeds
    smaller = smaller_feeds(trial.interface, compiled, axes)
    expected = trial.answers(trial.fallback(REFERENCE), [*compiled, *smaller])
    pairs = [
        _shapes(feed, answer)
        for feed, answer in zip([*compiled, *smaller], expected, strict=True)
        if not answer.reason
    ]
    padded = resolve_axes(requests, trial.interface, pairs)
    target = trial.context.options.target
    signatures = tuple(
        function_signature(function.function, function.decision.chosen.kernel)
        for function in trial.functions
    )
    way = TriedExecutable(executable, signatures, padded, target)
    compared = 0
    for feed, wanted, actual in zip(
        smaller, expected[len(compiled) :], trial.answers(way, smaller), strict=True
    ):
        if wanted.reason or actual.reason:
            continue
        compared += 1
        if reason := trial.differs(wanted, actual):
            raise OptionError(_changed(requests, feed, reason))
    if not compared:
        raise OptionError(
            f"--pad {requests[0].text}: no smaller shape could be tried with padding; compile a larger shape"
        )
    return padded


def _refusal(
    trial: Trial, answers: Sequence[Answer], tried: Mapping[str, tuple[Fallback, list[Answer]]]
) -> str:
    """Return why a framework's answers are not the original's, or ""."""
    for function, answer in zip(trial.functions, answers, strict=False):
        if answer.reason:
            return answer.reason
        if reason := trial.differs(Answer(function.expected, 0.0), answer):
            return reason
    reference = tried[REFERENCE][1] if REFERENCE in tried else []
    for expected, answer in zip(reference, answers, strict=False):
        if answer.reason and not expected.reason:
            return answer.reason
        if not expected.reason and (reason := trial.differs(expected, answer)):
            return reason
    return ""


def _relative_latency(framework: str, tried: Mapping[str, tuple[Fallback, list[Answer]]]) -> float:
    """Return the latency relative to the reference, the geometric mean; 1 without a reference."""
    if framework == REFERENCE or REFERENCE not in tried:
        return 1.0
    ratios = [
        answer.seconds / expected.seconds
        for expected, answer in zip(tried[REFERENCE][1], tried[framework][1], strict=True)
        if not expected.reason and not answer.reason
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) / (1 - MIN_OPENVINO_GAIN)


def _default_note(names: Sequence[str], fallback: BundledFallback | None = None) -> str:
    """Return what becomes of calls that give an input with a default; "" without such inputs."""
    if not names:
        return ""
    others = f" and {len(names) - 3} more" if len(names) > 3 else ""
    answer = (
        f"the original model in {fallback.fallback.framework} answers calls that give it"
        if fallback
        else "calls that give it are refused"
    )
    return (
        f"the default of {', '.join(names[:3])}{others} is a constant of the executable; {answer}"
    )


def _no_fallback(reasons: Mapping[str, str], allowed: set[str]) -> str:
    if not allowed & set(FRAMEWORKS):
        names = " or ".join(FRAMEWORKS)
        return f"no fallback for other shapes: add {names} to --backends for the original model"
    shown = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    return f"no fallback for other shapes: the original model's numbers are not reached ({shown})"


def _shapes(feed: Feed, answer: Answer) -> ShapePair:
    inputs = {name: tuple(array.shape) for name, array in feed.items()}
    return inputs, {name: tuple(array.shape) for name, array in answer.outputs.items()}


def _changed(requests: Sequence[PadRequest], feed: Feed, reason: str) -> str:
    options = " ".join(f"--pad {request.text}" for request in requests)
    shapes = ", ".join(f"{name}: {list(array.shape)}" for name, array in feed.items())
    return (
        f"{options}: with padding the numbers are not the original model's for ({shapes}): {reason}; give "
        "the value that the model ignores (value=N), name the outputs to crop (crop=OUTPUT:AXIS), or leave "
        "--pad out"
    )

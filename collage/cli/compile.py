"""The command `compile`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from collage.cli.arguments import Commands, add_command, add_models
from collage.cli.option_arguments import OPTION_NAMES, add_option, written_options
from collage.entries import find_entries
from collage.errors import OptionError, RequirementError
from collage.options import EFFORTS, Options, Precision


def add_compile_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "compile", _compile, "compile an ONNX model into a bundle")
    add_models(parser)
    parser.add_argument(
        "-o", "--output", type=Path, help="bundle directory (default: MODEL.collage)"
    )
    for name in OPTION_NAMES:
        if name == "measure_budget_s":  # the effort is the default of the times after it
            parser.add_argument("--effort", choices=EFFORTS, default="normal",
                                help="time budget of the search (default normal)")  # fmt: skip
        add_option(parser, name)
    parser.add_argument("--require-speedup", type=float, metavar="TIMES",
                        help="end with exit code 8 unless the bundle is this many times as fast as the "
                        "fastest framework; the bundle is written all the same")  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON document"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _compile(arguments: argparse.Namespace) -> int:
    from collage.pipeline import compile_model
    from collage.report.terminal import TerminalProgress, print_summary

    entries = find_entries(arguments.model)
    output = arguments.output or _default_output(arguments.model)
    progress = TerminalProgress(quiet=arguments.quiet)
    summary = compile_model(entries, _options(arguments), output, progress)
    if arguments.require_speedup is not None:
        _check_speedup(summary.speedup_over_best, arguments.require_speedup, output)
    if arguments.json:
        print(summary.to_json())
    else:
        print_summary(summary)
    return 0


def _check_speedup(speedup: float | None, required: float, output: Path) -> None:
    """Raise RequirementError unless the slowest function is `required` times as fast as its best baseline."""
    if speedup is not None and speedup >= required:
        return
    measured = (
        "was compared with no framework" if speedup is None else f"is {speedup:.3f} times as fast"
    )
    raise RequirementError(
        f"the bundle {output} {measured}; --require-speedup asks for {required:g} times as fast as the "
        f"fastest framework: `collage report {output} --json` prints the summary"
    )


def _default_output(models: Sequence[str]) -> Path:
    """Name the bundle after the model or folder. Raises OptionError for several."""
    if len(models) > 1:
        raise OptionError("a bundle of several models needs a name: add --output DIR")
    return Path(Path(models[0].rpartition("=")[2]).absolute().stem + ".collage")


def _options(arguments: argparse.Namespace) -> Options:
    written = written_options(arguments)
    if "tolerance" in written and written.get("precision", Precision.FP32) == Precision.FP32:
        raise OptionError("--tolerance has no meaning with --precision fp32: add --precision auto")
    return Options(**(EFFORTS[arguments.effort]._asdict() | written))

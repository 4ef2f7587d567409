"""The command `compile`."""

import argparse
from pathlib import Path

from collage.cli.arguments import Commands, add_command
from collage.cli.option_arguments import OPTION_NAMES, add_option, written_options
from collage.errors import OptionError
from collage.options import EFFORTS, Options, Precision


def add_compile_command(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "compile", _compile, "compile an ONNX model into a bundle")
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument(
        "-o", "--output", type=Path, help="bundle directory (default: MODEL.collage)"
    )
    for name in OPTION_NAMES:
        if name == "measure_budget_s":  # the effort is the default of the times after it
            parser.add_argument("--effort", choices=EFFORTS, default="normal",
                                help="time budget of the search (default normal)")  # fmt: skip
        add_option(parser, name)
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON document"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _compile(arguments: argparse.Namespace) -> int:
    from collage.pipeline import compile_model
    from collage.report.terminal import TerminalProgress, print_summary

    output = arguments.output or Path(arguments.model.stem + ".collage")
    progress = TerminalProgress(quiet=arguments.quiet)
    summary = compile_model(arguments.model, _options(arguments), output, progress)
    if arguments.json:
        print(summary.to_json())
    else:
        print_summary(summary)
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    written = written_options(arguments)
    if "tolerance" in written and written.get("precision", Precision.FP32) == Precision.FP32:
        raise OptionError("--tolerance has no meaning with --precision fp32: add --precision auto")
    return Options(**(EFFORTS[arguments.effort]._asdict() | written))

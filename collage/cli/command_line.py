"""The entry point `collage` and its parser. Exit codes are those of `collage.errors`.

`run` and `bench` of a bundle need the runtime extra alone. Command modules import the compiler inside
their functions, so that `collage --help` starts without it.
"""

import argparse
import sys
from collections.abc import Sequence

import collage
from collage.cli.bundle import add_bundle_commands
from collage.cli.candidates import add_candidates_command
from collage.cli.compile import add_compile_command
from collage.cli.environment import add_environment_commands
from collage.cli.errors import Parser, run_command, wants_json
from collage.cli.inspect import add_inspect_command
from collage.cli.registry import add_registry_commands
from collage.cli.report import add_report_commands
from collage.cli.store import add_store_commands
from collage.cli.usage import add_usage_command
from collage.errors import EXIT_CODES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    With --json standard output holds one JSON document, whether the command succeeds or not.

    Args:
        arguments: words of the command line; None means those of the process.
    """
    words = sys.argv[1:] if arguments is None else arguments

    def parse_and_run() -> int:
        parsed = make_parser().parse_args(words)
        return int(parsed.run(parsed))

    return run_command(parse_and_run, as_json=wants_json(words))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    codes = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())
    parser: argparse.ArgumentParser = Parser(
        prog="collage",
        description="Compile an ONNX model with the toolchain that measures fastest, region by region.",
        epilog=f"exit codes:\n{codes}\n\nWith --json, a command prints one JSON document on standard "
        'output; a failed command prints {"error": {"exit_code", "reason", "advice"}}.',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"collage {collage.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_compile_command(commands)
    add_inspect_command(commands)
    add_bundle_commands(commands)
    add_report_commands(commands)
    add_environment_commands(commands)
    add_candidates_command(commands)
    add_store_commands(commands)
    add_registry_commands(commands)
    add_usage_command(commands)
    return parser

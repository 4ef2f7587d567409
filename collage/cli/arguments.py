"""Subcommands and the printing of results, shared by all commands."""

import argparse
import json
from collections.abc import Callable
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    """Add a subcommand and return its parser.

    Args:
        commands: subcommands of the main parser.
        name: name of the subcommand.
        run: function of the subcommand; it takes the parsed arguments and returns the exit code.
        summary: help text in one line.
    """
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=run)
    return parser


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the models of a bundle's entries to a command."""
    parser.add_argument(
        "model", nargs="+", metavar="MODEL",
        help="ONNX file; several, or a folder of them, become the entries of one bundle, named after their "
        "files, or NAME=FILE",
    )  # fmt: skip


def print_result(as_json: bool, facts: object, text: str) -> None:
    """Print the facts as one JSON document, or the text."""
    print(json.dumps(facts) if as_json else text)

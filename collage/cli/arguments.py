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


def print_result(as_json: bool, facts: object, text: str) -> None:
    """Print the facts as one JSON document, or the text."""
    print(json.dumps(facts) if as_json else text)

"""The command `inspect`: inputs, open dimensions, operators, and what each backend would refuse."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from collage.cli.arguments import Commands, add_command
from collage.cli.option_arguments import add_inspected_models, written_options
from collage.entries import find_entries
from collage.options import Options

if TYPE_CHECKING:
    from collage.pipeline.inspection import InspectedBackend, InspectedModel

SHOWN = 8
"""Maximum number of operators, and of reasons per backend, on the terminal; --json lists all."""


def add_inspect_command(commands: Commands) -> None:
    """Add the command to the parser."""
    summary = "show what a model has and what a compile needs, without compiling"
    parser = add_command(commands, "inspect", _inspect, summary)
    add_inspected_models(parser)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")


def _inspect(arguments: argparse.Namespace) -> int:
    from collage.pipeline.inspection import inspect_models

    options = Options(**written_options(arguments))
    models = inspect_models(find_entries(arguments.model), options)
    if arguments.json:
        print(json.dumps({"models": [asdict(model) for model in models]}))
    else:
        print("\n\n".join(_text(model) for model in models))
    return 0


def _text(model: "InspectedModel") -> str:
    lines = [f"{model.entry}  {model.path}"]
    for value in model.inputs:
        name = value.partition(":")[0]
        lines.append(f"  input     {value}{'  (has a default)' if name in model.defaults else ''}")
    lines += [f"  output    {value}" for value in model.outputs]
    counts = [f"{count} {operator}" for operator, count in model.operators.items()]
    hidden = f", and {len(counts) - SHOWN} kinds more" if len(counts) > SHOWN else ""
    lines.append(
        f"  nodes     {sum(model.operators.values())}: {', '.join(counts[:SHOWN])}{hidden}"
    )
    lines += [f"  to bind   {option}" for option in model.open_dimensions]
    if model.obstacle:
        lines.append(f"  backends  not asked: {model.obstacle}")
    for backend in model.backends:
        lines += _backend_lines(backend)
    return "\n".join(lines)


def _backend_lines(backend: "InspectedBackend") -> list[str]:
    missing = f"; not available here: {backend.missing}" if backend.missing else ""
    lines = [
        f"  {backend.name:<14}{backend.function}: takes {backend.taken} of {backend.nodes} nodes{missing}"
    ]
    reasons = [f"      refuses {count}: {reason}" for reason, count in backend.refused.items()]
    hidden = len(reasons) - SHOWN
    return (
        lines
        + reasons[:SHOWN]
        + ([f"      and {hidden} reasons more (--json)"] if hidden > 0 else [])
    )

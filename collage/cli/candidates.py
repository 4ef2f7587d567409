"""The command `candidates`: the regions that each backend offers, and the reasons for refusals."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from collage.cli.arguments import Commands, add_command
from collage.cli.option_arguments import add_inspected_models, add_option, written_options
from collage.entries import find_entries
from collage.options import Options

if TYPE_CHECKING:
    from collage.pipeline import ListedBackend

SHOWN = 12
"""Maximum number of labels, and of reasons, per backend on the terminal; --json lists all."""


def add_candidates_command(
    commands: Commands,
) -> None:
    """Add the command to the parser."""
    summary = "list the candidate regions of a model of each backend, with the reasons for refusals"
    parser = add_command(commands, "candidates", _candidates, summary)
    add_inspected_models(parser)
    add_option(parser, "precision", "auto: include reduced-precision variants (default fp32)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")


def _candidates(arguments: argparse.Namespace) -> int:
    from collage.pipeline import list_candidates

    options = Options(**written_options(arguments))
    backends = list_candidates(find_entries(arguments.model), options)
    if arguments.json:
        print(
            json.dumps(
                {"device": options.device, "backends": [asdict(backend) for backend in backends]}
            )
        )
    else:
        print("\n\n".join(_text(backend) for backend in backends))
    return 0


def _text(listed: "ListedBackend") -> str:
    variants = sum(len(candidate.variants) for candidate in listed.candidates)
    lines = [
        f"{listed.name} ({listed.style}), function {listed.function}: {len(listed.candidates)} regions, "
        f"{variants} candidates with variants; alone it covers {listed.alone} of {listed.nodes} nodes"
    ]
    if listed.missing:
        lines.append(f"  not available: {listed.missing}")
    lines += _first([f"  {count:5d} x {label}" for label, count in listed.labels.items()])
    lines += _first([f"  no {count} x {text}" for text, count in listed.left_out.items()])
    lines += _first([
        f"  no {len(names)} x {reason} (e.g. {names[0]})"
        for reason, names in sorted(listed.refused.items(), key=lambda item: -len(item[1]))
    ])  # fmt: skip
    return "\n".join(lines)


def _first(lines: list[str]) -> list[str]:
    hidden_count = len(lines) - SHOWN
    return (
        lines
        if hidden_count <= 0
        else [*lines[:SHOWN], f"        and {hidden_count} more (--json)"]
    )

"""The command `candidates`: the regions that each backend offers, and the reasons for refusals."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from collage.cli.arguments import Commands, add_command, parse_dims, parse_shapes
from collage.options import DEVICES, Options, Precision

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
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument(
        "--device", choices=DEVICES, default="cpu", help="target device (default cpu)"
    )
    parser.add_argument(
        "--backends", metavar="A,B", help="backend names (default: all backends of the device)"
    )
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N",
                        help="bind a named dimension")  # fmt: skip
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=1,3,480,480",
                        help="bind the shape of an input")  # fmt: skip
    parser.add_argument("--precision", choices=[*Precision], default=Precision.FP32,
                        help="auto: include reduced-precision variants (default fp32)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")


def _candidates(arguments: argparse.Namespace) -> int:
    from collage.pipeline import list_candidates

    options = Options(
        backends=tuple(arguments.backends.split(",")) if arguments.backends else None,
        device=arguments.device,
        dims=parse_dims(arguments.dim),
        shapes=parse_shapes(arguments.shape),
        precision=arguments.precision,
    )
    backends = list_candidates(arguments.model, options)
    if arguments.json:
        print(
            json.dumps(
                {"device": arguments.device, "backends": [asdict(backend) for backend in backends]}
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

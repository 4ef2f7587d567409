"""The command `candidates`: what each backend could take of a model, and why not the rest."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from collage.cli.arguments import command, parse_dims, parse_shapes
from collage.options import DEVICES, Options, Precision

if TYPE_CHECKING:
    from collage.pipeline import ListedBackend

SHOWN = 12
"""Labels, and reasons, of one backend on the screen; --json has them all."""


def add_candidates_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    """Add the command to the parser."""
    summary = "list the candidates of a model for each backend, installed or not, and why not"
    parser = command(commands, "candidates", _candidates, summary)
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where kernels run (cpu)")
    parser.add_argument("--backends", metavar="A,B", help="default: all of the device")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=1,3,480,480")
    parser.add_argument("--precision", choices=[*Precision], default=Precision.FP32,
                        help="auto: also the variants that compute in less (default fp32)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="everything, as one JSON document")


def _candidates(arguments: argparse.Namespace) -> int:
    from collage.pipeline import list_candidates

    options = Options(
        backends=tuple(arguments.backends.split(",")) if arguments.backends else None,
        device=arguments.device,
        dims=parse_dims(arguments.dim),
        shapes=parse_shapes(arguments.shape),
        precision=arguments.precision,
    )
    found = list_candidates(arguments.model, options)
    if arguments.json:
        print(json.dumps({"device": arguments.device, "backends": [asdict(one) for one in found]}))
    else:
        print("\n\n".join(_text(one) for one in found))
    return 0


def _text(listed: "ListedBackend") -> str:
    variants = sum(len(one.variants) for one in listed.candidates)
    lines = [
        f"{listed.name} ({listed.style}), function {listed.function}: {len(listed.candidates)} regions, "
        f"{variants} with variants; alone it takes {listed.alone} of {listed.nodes} nodes"
    ]
    if listed.missing:
        lines.append(f"  not on this machine: {listed.missing}")
    lines += _first([f"  {count:5d} x {label}" for label, count in listed.labels.items()])
    lines += _first([f"  no {count} x {text}" for text, count in listed.left_out.items()])
    lines += _first([
        f"  no {len(names)} x {reason} (e.g. {names[0]})"
        for reason, names in sorted(listed.refused.items(), key=lambda item: -len(item[1]))
    ])  # fmt: skip
    return "\n".join(lines)


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"        and {more} more (--json)"]

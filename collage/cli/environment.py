"""The commands about this machine: backends, doctor."""

import argparse
import json

from collage.cli.arguments import Commands, add_command, print_result
from collage.cli.option_arguments import add_option, written_options
from collage.options import Options


def add_environment_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    backends = add_command(
        commands,
        "backends",
        _backends,
        "list the backends with their versions, or why not available",
    )
    backends.add_argument("--json", action="store_true", help="print one JSON document")
    doctor = add_command(commands, "doctor", _doctor, "check this machine and the store")
    add_option(doctor, "cache_dir")
    add_option(doctor, "store", "also check this shared store")
    doctor.add_argument("--json", action="store_true", help="print one JSON document")


def _backends(arguments: argparse.Namespace) -> int:
    from collage.backends.registry import all_backends
    from collage.report.terminal import print_backends

    rows = [
        (backend.name, backend.style.value, backend.device, backend.availability())
        for backend in all_backends()
    ]
    if arguments.json:
        facts = [
            {"name": name, "style": style, "device": device, "available": availability.available,
             "libraries": dict(availability.libraries), "reason": availability.reason}
            for name, style, device, availability in rows
        ]  # fmt: skip
        print(json.dumps({"backends": facts}))
        return 0
    print_backends(rows)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from collage.pipeline import doctor

    checks = doctor(Options(**written_options(arguments)))
    is_failed = any(not check.passed for check in checks)
    facts = [
        {"check": check.name, "passed": check.passed, "detail": check.detail} for check in checks
    ]
    lines = [
        f"{'ok' if check.passed else 'NO':<4}{check.name:<22}{check.detail}" for check in checks
    ]
    print_result(arguments.json, {"checks": facts}, "\n".join(lines))
    return 1 if is_failed else 0

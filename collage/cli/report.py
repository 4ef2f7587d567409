"""The commands about a bundle's plan: report, explain, diff."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from collage.cli.arguments import Commands, add_command
from collage.errors import InputError, RequirementError
from collage.option_text import parse_share

if TYPE_CHECKING:
    from collage.report.explanation import Difference


def add_report_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    report = add_command(
        commands, "report", _report, "print the path of a bundle's HTML report, or its summary"
    )
    report.add_argument("bundle", type=Path, help="bundle directory")
    report.add_argument(
        "--json", action="store_true", help="print the summary as one JSON document"
    )
    explain = add_command(
        commands, "explain", _explain, "explain why each region of a bundle runs where it does"
    )
    explain.add_argument("bundle", type=Path, help="bundle directory")
    explain.add_argument("--node", metavar="N", help="explain one node, by name or number")
    explain.add_argument(
        "--function", help="function of the node (default: the first function with such a node)"
    )
    explain.add_argument("--json", action="store_true", help="print one JSON document")
    diff = add_command(commands, "diff", _diff, "compare the plans of two bundles")
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")
    diff.add_argument(
        "--fail-slower", type=parse_share, metavar="5%",
        help="end with exit code 8 if a function of B is slower than A's by more than this share",
    )  # fmt: skip
    diff.add_argument("--json", action="store_true", help="print one JSON document")


def _report(arguments: argparse.Namespace) -> int:
    from collage.report.stored_report import read_summary

    page = arguments.bundle / "report.html"
    if not page.is_file():
        raise InputError(f"{arguments.bundle} holds no report; is it a bundle?")
    print(read_summary(arguments.bundle).to_json() if arguments.json else page.resolve())
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from collage.report.explain_text import node_text, overview_text
    from collage.report.explanation import explain_node, overview
    from collage.report.stored_report import read_report

    data = read_report(arguments.bundle)
    if arguments.node is None:
        plan = overview(data)
        print(plan.model_dump_json() if arguments.json else overview_text(plan))
        return 0
    node = explain_node(data, arguments.node, arguments.function)
    print(node.model_dump_json() if arguments.json else node_text(node))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from collage.report.explain_text import diff_text
    from collage.report.explanation import diff
    from collage.report.stored_report import read_report

    difference = diff(read_report(arguments.first), read_report(arguments.second))
    if arguments.fail_slower is not None:
        _check_slower(difference, arguments.fail_slower)
    print(difference.model_dump_json() if arguments.json else diff_text(difference))
    return 0


def _check_slower(difference: "Difference", share: float) -> None:
    """Raise RequirementError where a full call of the second bundle takes longer by more than `share`."""
    for first, second in zip(difference.first, difference.second, strict=True):
        if first.latency_s is None or second.latency_s is None:
            raise RequirementError(
                f"{first.function} was not measured in both bundles; compile both without --allow-slower"
            )
        ratio = second.latency_s / first.latency_s
        if ratio > 1 + share:
            raise RequirementError(
                f"{first.function} takes {second.latency_s * 1e3:.3f} ms in B, {ratio - 1:.1%} longer than "
                f"the {first.latency_s * 1e3:.3f} ms in A; --fail-slower allows {share:.1%}. Each was "
                "measured at its compile: `collage bench` measures a bundle on this machine"
            )

"""The commands about a bundle's plan: report, explain, diff."""

import argparse
from pathlib import Path

from collage.cli.arguments import Commands, add_command
from collage.errors import InputError


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
    print(difference.model_dump_json() if arguments.json else diff_text(difference))
    return 0

"""Arguments beyond four travel by name. Ruff checks definitions (PLR0917), this module calls of classes."""

import ast

import pytest

from tests.documents import ROOT

FOLDERS = ("collage", "flows", "containers", "benchmarks", "tests/support")
MAX_POSITIONAL = 4


def parsed(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} has no Python file"
    return {file.relative_to(ROOT): ast.parse(file.read_text()) for file in files}


def own_classes():
    trees = [tree for folder in FOLDERS for tree in parsed(folder).values()]
    return {
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }


def long_calls(tree, classes):
    """Return the lines and names of calls of the classes with too many arguments without a name."""
    return [
        (node.lineno, node.func.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in classes | {"cls"} and len(node.args) > MAX_POSITIONAL
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_constructors_get_at_most_four_arguments_by_position(folder):
    classes = own_classes()
    calls = {str(file): long_calls(tree, classes) for file, tree in parsed(folder).items()}
    assert {file: lines for file, lines in calls.items() if lines} == {}


def test_a_long_call_of_a_constructor_is_found():
    tree = ast.parse("Cost(1, 2, 3, 4, 5)\nCost(1, 2, 3, 4, reason='')\nother(1, 2, 3, 4, 5)")
    assert long_calls(tree, {"Cost"}) == [(1, "Cost")]

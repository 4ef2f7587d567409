"""docs/where-is.md names symbols that exist, with the values that they have."""

import ast
import re

import pytest

from tests.documents import ROOT

_ROW = re.compile(r"^\| (?P<question>[^|]+\?) \| `(?P<place>[^`]+)` \| (?:`(?P<value>[^`]+)` )?\|$")
DOCUMENT = ROOT / "docs" / "where-is.md"


def rows() -> list[tuple[str, str, str | None]]:
    matches = map(_ROW.match, DOCUMENT.read_text().splitlines())
    return [(match["question"], match["place"], match["value"]) for match in matches if match]


def definitions(file: str) -> dict[str, ast.expr | None]:
    """Return the names that a module defines, with the expression of those that are assigned."""
    names: dict[str, ast.expr | None] = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = None
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node.value
    return names


def test_every_line_of_the_tables_is_read():
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    headers = [line for line in lines if line.startswith("| question |")]
    assert len(rows()) == len(lines) - len(headers) >= 60


@pytest.mark.parametrize(("question", "place", "value"), rows())
def test_the_symbol_exists_and_has_the_value(question, place, value):
    file, _, symbol = place.partition(":")
    assert (ROOT / file).is_file()
    names = definitions(file)
    assert not symbol or symbol in names
    if value is not None:
        assert names[symbol] is not None
        assert ast.unparse(names[symbol]) == ast.unparse(ast.parse(value, mode="eval").body)

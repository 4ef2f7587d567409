"""docs/rfc.md names symbols and tests that exist, for every mechanism."""

import re

import pytest

from tests.docs.test_where_is import definitions
from tests.documents import ROOT

DOCUMENT = ROOT / "docs" / "rfc.md"
_PLACE = re.compile(r"`([\w/.]+\.py)(?::(\w+))?`")
MECHANISMS = (
    "DFPattern", "OpPredicate", "OpCallByKind", "Composite", "Primitive", "AllSimple", "TupleArg",
    "TupleProj", "ByAnchor", "Union", "OnlyValid", "MaxCoalesce", "Combine", "Host", "PartitionSpec",
)  # fmt: skip
"""Symbols of `collage.rules` that the tables must have."""


def rows():
    lines = DOCUMENT.read_text().splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    return [row for row in cells if row[0] != "RFC" and not set(row[0]) <= {"-"}]


def test_every_table_is_read():
    assert len(rows()) >= 45


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_the_symbol_and_the_test_exist(row):
    symbols, tests = _PLACE.findall(row[1]), _PLACE.findall(row[-1])
    assert symbols
    assert tests
    for file, name in symbols:
        assert file.startswith(("collage/", "benchmarks/"))
        assert not name or name in definitions(file)
        assert (ROOT / file).is_file()
    for file, name in tests:
        assert file.startswith("tests/")
        names = definitions(file)
        assert name in names if name else any(defined.startswith("test_") for defined in names)


@pytest.mark.parametrize("symbol", MECHANISMS)
def test_every_rule_has_a_row(symbol):
    assert any(name == symbol for row in rows() for _, name in _PLACE.findall(row[1]))

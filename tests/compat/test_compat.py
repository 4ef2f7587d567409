"""What `make compat` tests: ends of declared ranges, tests that exist, and rows of the document's table."""

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.compat.ranges import TESTS, Range, declared_specifiers, range_ends
from tests.compat.run import HEAD, Result, table_row, with_rows
from tests.documents import ROOT


@pytest.mark.parametrize("package", TESTS)
def test_each_package_is_required_and_has_tests(package):
    assert declared_specifiers(package)
    assert all((ROOT / test).exists() for test in TESTS[package])


def test_the_ends_are_in_the_range():
    versions = [Version(text) for text in ("1.0", "1.1", "1.2", "1.10", "2.0")]
    ends = range_ends(SpecifierSet(">=1.1,!=1.10,<2"), versions)
    assert list(map(str, ends)) == ["1.1", "1.2"]
    with pytest.raises(ValueError, match="no version"):
        range_ends(SpecifierSet(">=3"), versions)


def test_an_unknown_package_is_refused():
    with pytest.raises(ValueError, match="does not require"):
        declared_specifiers("no-such-package")


def test_new_rows_stand_beside_those_of_before():
    declared = Range("b", SpecifierSet(">=1"), Version("1"), Version("2"))
    row = table_row(
        declared, [Result(Version("1"), False, "1 failed"), Result(Version("2"), True, "9 passed")]
    )
    assert row == "| `b` | `>=1` | **1: 1 failed** | 2: 9 passed |"
    document = f"Text\n\n{HEAD}| `a` | x | y | z |\n| `b` | old | old | old |\n\nMore\n"
    assert with_rows(document, {"b": row}) == f"Text\n\n{HEAD}| `a` | x | y | z |\n{row}\n\nMore\n"


def test_the_document_has_the_table():
    document = (ROOT / "docs" / "compatibility.md").read_text()
    assert with_rows(document, {}) == document

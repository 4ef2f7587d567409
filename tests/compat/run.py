"""Both ends of each range of versions: `python -m tests.compat.run [PACKAGE ...] [--output FILE]`.

The oldest and the newest version of the range in pyproject.toml is installed into an environment of its own
(`tests.compat.environment`), and the tests that use the package run there. The table goes to the output, and
into a file's table, where rows of other packages stay.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from tests.compat.environment import make_environment, run_tests
from tests.compat.ranges import TESTS, Range, declared_range

HEAD = "| package | range | oldest | newest |\n|---|---|---|---|\n"
_ROW = re.compile(r"^\| `([^`]+)` \|.*\|$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """The tests with one version."""

    version: Version
    passed: bool
    summary: str

    def __str__(self) -> str:
        return (
            f"{self.version}: {self.summary}"
            if self.passed
            else f"**{self.version}: {self.summary}**"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="packages; default: all that have tests")
    parser.add_argument("--work", type=Path, default=Path("build/compat"))
    parser.add_argument("--output", type=Path, help="document with the table")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.packages) - TESTS.keys())
    if unknown:
        parser.error(
            f"no tests for {', '.join(unknown)}; there are some for {', '.join(sorted(TESTS))}"
        )
    passed, rows = True, {}
    for package in arguments.packages or TESTS:
        declared = declared_range(package)
        results = [
            check_version(declared, version, arguments.work)
            for version in dict.fromkeys((declared.oldest, declared.newest))
        ]
        rows[package] = table_row(declared, results)
        passed = passed and all(result.passed for result in results)
        print(rows[package], flush=True)
    if arguments.output:
        document = arguments.output
        document.write_text(with_rows(document.read_text(), rows))
    return 0 if passed else 1


def check_version(declared: Range, version: Version, work: Path) -> Result:
    """Install one version and run the package's tests with it."""
    name = f"{declared.package}-{version}"
    work.mkdir(parents=True, exist_ok=True)
    try:
        python = make_environment((work / name).absolute(), f"{declared.package}=={version}")
    except subprocess.CalledProcessError:
        return Result(version, False, "cannot be installed")
    passed, summary = run_tests(python, TESTS[declared.package], work / f"{name}.log")
    return Result(version, passed, re.sub(r" in [\d.]+s.*$", "", summary))


def table_row(declared: Range, results: list[Result]) -> str:
    """Return the row of a package: its range, and the results of the oldest and the newest version."""
    return f"| `{declared.package}` | `{declared.specifiers}` | {results[0]} | {results[-1]} |"


def with_rows(document: str, rows: dict[str, str]) -> str:
    """Return the document with these rows in its table, beside those of other packages.

    Raises:
        ValueError: the document has no such table.
    """
    start = document.find(HEAD)
    if start < 0:
        raise ValueError("the document has no table of packages")
    body = start + len(HEAD)
    lines = document[body:].splitlines()
    count = next((index for index, line in enumerate(lines) if not _ROW.match(line)), len(lines))
    before = {_ROW.match(line).group(1): line for line in lines[:count]}  # type: ignore[union-attr]
    table = [text for _, text in sorted({**before, **rows}.items())]
    return (document[:body] + "\n".join([*table, *lines[count:]])).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.exit(main())

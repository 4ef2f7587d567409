"""Results of node tests, and their tables."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import onnx

IMPORT = "import"
EXECUTABLE = "executable"
ORIGINAL_FILE = "original file"
PROGRAM = "program"
"""Name of the results of a test that ends in an exception or a crash."""

MAX_REASON_LETTERS = 110
_OPERATORS = "|".join(sorted({schema.name for schema in onnx.defs.get_all_schemas()}))
_NAMES_AND_NUMBERS = re.compile(rf"'[^']*'|\(\S*\)|\[[^]]*\]|\d[\d.]*|\b(?:{_OPERATORS})\b")


class Outcome(StrEnum):
    """What becomes of a test in one place."""

    PASSED = "passed"
    SKIPPED = "skipped"
    WRONG = "wrong"


@dataclass(frozen=True)
class Result:
    """The result of one test in one place.

    Attributes:
        backend: name of a backend, or one of the names above.
        reason: "" where the test passed.
    """

    test: str
    backend: str
    outcome: Outcome
    reason: str = ""


def tables(results: Sequence[Result], domains: Mapping[str, str]) -> str:
    """Return the tables in Markdown, and every wrong result.

    Args:
        results: results of all tests.
        domains: operator domain of each test, by its name.
    """
    parts = [_by_domain(results, domains), _by_backend(results), _by_reason(results)]
    wrong = [result for result in results if result.outcome is Outcome.WRONG]
    lines = [f"wrong: {result.test} on {result.backend}: {result.reason}" for result in wrong]
    return "\n\n".join([*parts, *lines])


def _by_domain(results: Sequence[Result], domains: Mapping[str, str]) -> str:
    """Return the table that counts each test once: by the form of a bundle that answers it."""
    by_test: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_test[result.test].append(result)
    counts = Counter((domains.get(name, ""), _form(of_test)) for name, of_test in by_test.items())
    forms = (EXECUTABLE, ORIGINAL_FILE, Outcome.SKIPPED, Outcome.WRONG)
    names = sorted({domain for domain, _ in counts})
    rows = [[name, *(counts[name, form] for form in forms)] for name in names]
    rows.append(["all", *(sum(counts[name, form] for name in names) for form in forms)])
    with_sums = [[name, sum(numbers), *numbers] for name, *numbers in rows]
    header = [
        "operators of",
        "tests",
        "executable passed",
        "original file passed",
        "skipped",
        "wrong",
    ]
    return _markdown(header, with_sums)


def _form(results: Iterable[Result]) -> str:
    outcomes = {(result.backend, result.outcome) for result in results}
    if any(outcome is Outcome.WRONG for _, outcome in outcomes):
        return Outcome.WRONG
    passed = [form for form in (EXECUTABLE, ORIGINAL_FILE) if (form, Outcome.PASSED) in outcomes]
    return passed[0] if passed else Outcome.SKIPPED


def _by_backend(results: Sequence[Result]) -> str:
    counts = Counter((result.backend, result.outcome) for result in results)
    names = sorted({result.backend for result in results})
    rows = [[name, *(counts[name, outcome] for outcome in Outcome)] for name in names]
    return _markdown(["backend or stage", *Outcome], rows)


def _by_reason(results: Sequence[Result]) -> str:
    counts = Counter(
        (result.backend, kind_of(result.reason))
        for result in results
        if result.outcome is Outcome.SKIPPED
    )
    rows = [
        [number, backend, reason.replace("|", "\\|")]
        for (backend, reason), number in sorted(
            counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1])
        )
    ]
    return _markdown(["skipped", "backend or stage", "reason"], rows)


def kind_of(reason: str) -> str:
    """Return the reason without names, operators and numbers.

    >>> kind_of("TVM has no Det (node_1) of 'x'")
    'TVM has no … of …'
    """
    return re.sub("…[… ]*…", "…", _NAMES_AND_NUMBERS.sub("…", reason))[:MAX_REASON_LETTERS]


def _markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)

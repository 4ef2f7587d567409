"""No blob, and no argument, ends the process: what is wrong is an error that says so."""

import re

import pytest

from tests.runtime import blob_cases, blob_fuzz
from tests.runtime.blob_run import Outcome, outcomes
from tests.runtime.blob_seeds import seeds

EXPECTED = {case.name: message for case, message in blob_cases.expected()}
ERRORS = ("ValueError", "RuntimeError", "TypeError")


@pytest.fixture(scope="module")
def crafted() -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in outcomes(blob_cases.__name__)}


@pytest.mark.parametrize("kind", seeds())
def test_what_crafted_blobs_begin_with_runs(kind: str, crafted: dict[str, Outcome]) -> None:
    assert crafted[f"{kind}: as it is"].kind == "ran", crafted[f"{kind}: as it is"]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_crafted_blob_is_an_error_that_names_the_field(
    name: str, crafted: dict[str, Outcome]
) -> None:
    outcome = crafted[name]
    assert outcome.kind in ERRORS, outcome
    assert re.search(EXPECTED[name], outcome.message), outcome


def test_mutated_blobs_are_refused_or_run_within_bounds() -> None:
    results = list(outcomes(blob_fuzz.__name__))
    assert len(results) == sum(blob_fuzz.COUNTS.values())
    assert [result for result in results if result.kind not in ("ran", *ERRORS)] == []
    for kind in blob_fuzz.COUNTS:
        kinds = {result.kind for result in results if result.name.startswith(f"{kind} ")}
        assert "ran" in kinds
        assert kinds - {"ran"}, f"no mutant of {kind} was refused"

"""The checkpoint of a finished search: its content, and the cases in which it counts as absent."""

import json
import math

import pytest

from collage.cost import Cost
from collage.pipeline.search_checkpoint import (
    CheckpointFile,
    SearchCheckpoint,
    select_remembered_plans,
)
from collage.search.enumeration import EnumeratedFunction
from collage.search.function_search import FunctionSearch
from collage.search.in_context import InContextSample
from collage.search.plan_selection import NamedPlan
from collage.search.problem import Option, Plan, Problem
from collage.verify import Latency
from tests.support.search_oracle import chain

A = Option(0b01, ("digest-a", "ort 1", ""), "ort")
B = Option(0b10, ("digest-b", "tvm 1", "fast"), "tvm")
VIEW = Option(0b10, "host", "host")


@pytest.fixture
def search():
    problem = Problem(chain(2), [A, B, VIEW])
    costs = {A.key: Cost(1.0), B.key: Cost(2.0), VIEW.key: Cost(0.5)}
    return FunctionSearch(EnumeratedFunction(None, (), problem, {}), costs, (), None)


def test_plans_come_back_with_current_costs(search, tmp_path):
    file = CheckpointFile(tmp_path / "searches" / "checkpoint")
    assert file.read() == SearchCheckpoint()
    file.write(SearchCheckpoint.of(0.25))
    assert (file.read().gap_s, file.read().plans(search)) == (0.25, ())
    mix = NamedPlan("best-1", Plan((A, B), 9.0))
    with_view = NamedPlan("ort-only", Plan((A, VIEW), 9.0), "ort")
    file.write(SearchCheckpoint.of(0.0, plans=[mix, with_view]))
    assert file.read().gap_s == 0.0
    first, second = file.read().plans(search)
    assert (first.name, first.plan.options, first.plan.predicted_s) == ("best-1", (A, B), 3.0)
    assert (second.single, second.plan.options) == ("ort", (A, VIEW))
    assert [entry.name for entry in file.path.parent.iterdir()] == ["checkpoint"]


def test_the_stored_format_is_fixed(tmp_path):
    file = CheckpointFile(tmp_path / "checkpoint")
    plan = NamedPlan("best-1", Plan((A,), 9.0), "ort")
    file.write(
        SearchCheckpoint.of(
            math.inf, plans=[plan], samples=[InContextSample(A.key, 1.0, 1.5)], tuned_s=2.0
        )
    )
    key = ["digest-a", "ort 1", ""]
    assert json.loads(file.path.read_text()) == {
        "gap_s": math.inf,
        "plans": [{"name": "best-1", "single": "ort", "options": [["0x1", "ort", key]]}],
        "tuned_s": 2.0,
        "in_place": [[key, 1.0, 1.5]],
    }


def test_tuning_time_never_decreases(tmp_path):
    file = CheckpointFile(tmp_path / "checkpoint")
    file.write(SearchCheckpoint.of(0.0, tuned_s=30.0))
    file.write(SearchCheckpoint.of(0.0))
    assert file.read().tuned_s == 30.0


def test_samples_come_back_while_their_candidates_exist(search, tmp_path):
    file = CheckpointFile(tmp_path / "checkpoint")
    samples = (InContextSample(A.key, 1.0, 1.5), InContextSample(B.key, 2.0, 1.9))
    file.write(SearchCheckpoint.of(0.0, samples=samples))
    assert file.read().samples(search) == samples
    removed = InContextSample(("digest-c", "ov 1", ""), 1.0, 1.0)
    file.write(SearchCheckpoint.of(0.0, samples=[*samples, removed]))
    assert file.read().samples(search) == ()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"gap_s": "x"}', '{"plans": [{"options": [7]}]}']
)
def test_a_damaged_checkpoint_counts_as_absent(tmp_path, content):
    file = CheckpointFile(tmp_path / "checkpoint")
    file.path.write_text(content)
    assert file.read() == SearchCheckpoint()


def test_plans_of_removed_candidates_are_forgotten(search, tmp_path):
    file = CheckpointFile(tmp_path / "checkpoint")
    removed = Option(0b11, ("digest-c", "ov 1", ""), "ov")
    plan = NamedPlan("complete", Plan((removed,), 1.0), "ov")
    file.write(SearchCheckpoint.of(0.5, plans=[plan]))
    assert (file.read().gap_s, file.read().plans(search)) == (0.5, ())


def test_the_fastest_plan_and_the_best_toolchain_are_remembered():
    names = ("a", "b", "c", "d", "broken")
    plans = {n: NamedPlan(n, Plan((), 0.0), "ort" if n in "cd" else "") for n in names}
    seconds = {"a": 3.0, "b": 1.0, "c": 5.0, "d": 4.0, "broken": math.inf}
    latencies = {name: Latency(value) for name, value in seconds.items()}
    assert [p.name for p in select_remembered_plans(plans, latencies)] == ["b", "d"]


def test_plans_of_the_final_round_come_before_earlier_ones():
    plans = {n: NamedPlan(n, Plan((), 0.0), "ort" if n in "cd" else "") for n in "abcd"}
    latencies = {
        name: Latency(value) for name, value in zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True)
    }
    remembered = select_remembered_plans(plans, latencies, ("b", "d"))
    assert [plan.name for plan in remembered] == ["b", "d"]

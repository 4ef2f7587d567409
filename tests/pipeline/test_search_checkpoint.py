"""The mark of a finished search: what it keeps, and what counts as absent."""

import math

import pytest

from collage.cost import Cost
from collage.pipeline.search_checkpoint import SearchMark, worth_remembering
from collage.search.enumeration import Enumerated
from collage.search.function_search import FunctionSearch
from collage.search.in_context import Sighting
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
    return FunctionSearch(Enumerated(None, (), problem, {}), costs, (), None)


def test_plans_come_back_with_the_costs_of_now(search, tmp_path):
    mark = SearchMark(tmp_path / "searches" / "mark")
    assert mark.gap_s() is None
    assert mark.plans(search) == ()
    mark.write(0.25)
    assert (mark.gap_s(), list(mark.plans(search))) == (0.25, [])
    mix = NamedPlan("best-1", Plan((A, B), 9.0))
    viewed = NamedPlan("ort-only", Plan((A, VIEW), 9.0), "ort")
    mark.write(0.0, [mix, viewed])
    assert mark.gap_s() == 0.0
    first, second = mark.plans(search)
    assert (first.name, first.plan.options, first.plan.predicted_s) == ("best-1", (A, B), 3.0)
    assert (second.single, second.plan.options) == ("ort", (A, VIEW))
    assert [file.name for file in mark.path.parent.iterdir()] == ["mark"]


def test_what_was_seen_in_place_comes_back_while_its_candidates_are_there(search, tmp_path):
    mark = SearchMark(tmp_path / "mark")
    assert mark.in_place(search) == ()
    seen = [Sighting(A.key, 1.0, 1.5), Sighting(B.key, 2.0, 1.9)]
    mark.write(0.0, in_place=seen)
    assert mark.in_place(search) == seen
    mark.write(0.0, in_place=[*seen, Sighting(("digest-c", "ov 1", ""), 1.0, 1.0)])
    assert mark.in_place(search) == ()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"gap_s": "x"}', '{"plans": [{"options": [7]}]}']
)
def test_a_damaged_mark_counts_as_absent(search, tmp_path, content):
    mark = SearchMark(tmp_path / "mark")
    mark.path.write_text(content)
    assert mark.gap_s() is None
    assert mark.plans(search) == ()
    assert mark.in_place(search) == ()


def test_plans_of_candidates_that_are_gone_are_forgotten(search, tmp_path):
    mark = SearchMark(tmp_path / "mark")
    gone = Option(0b11, ("digest-c", "ov 1", ""), "ov")
    mark.write(0.0, [NamedPlan("whole", Plan((gone,), 1.0), "ov")])
    assert mark.plans(search) == ()


def test_the_fastest_plan_and_the_fastest_of_one_toolchain_are_remembered():
    names = ("a", "b", "c", "d", "broken")
    plans = {n: NamedPlan(n, Plan((), 0.0), "ort" if n in "cd" else "") for n in names}
    seconds = {"a": 3.0, "b": 1.0, "c": 5.0, "d": 4.0, "broken": math.inf}
    latencies = {name: Latency(value) for name, value in seconds.items()}
    assert [p.name for p in worth_remembering(plans, latencies)] == ["b", "d"]


def test_those_that_were_compared_last_come_before_lucky_ones_of_another_moment():
    plans = {n: NamedPlan(n, Plan((), 0.0), "ort" if n in "cd" else "") for n in "abcd"}
    latencies = {
        name: Latency(value) for name, value in zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True)
    }
    found = worth_remembering(plans, latencies, ("b", "d"))
    assert [plan.name for plan in found] == ["b", "d"]

"""Repeated blocks are found by their period; regions across several of them end at borders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.graph.cut_points import intervals
from collage.graph.repeats import MAX_PERIOD, RepeatedRun, repeated_runs

RUNS = [
    ("", []),
    ("abcabc", []),
    ("aaa", [(0, 1, 3)]),
    ("xababab", [(1, 2, 3)]),
    ("xababaaby", []),
    ("abababa", [(0, 2, 3)]),
    ("aaaaaaaa", [(0, 1, 8)]),
    ("abcabcabcabcdededef", [(12, 2, 3), (0, 3, 4)]),
    ("aaabaaabaaab", [(0, 1, 3), (4, 1, 3), (8, 1, 3), (0, 4, 3)]),
]


@pytest.mark.parametrize(("text", "runs"), RUNS)
def test_runs_are_equal_blocks_in_sequence(text, runs):
    assert repeated_runs(text) == [RepeatedRun(*run) for run in runs]


def test_a_block_has_a_largest_period():
    block = list(range(MAX_PERIOD))
    assert repeated_runs(3 * block) == [RepeatedRun(0, MAX_PERIOD, 3)]
    assert repeated_runs(3 * [*block, "more"]) == []


def classes(period, blocks, tail=0):
    """Return the different intervals of a sequence of blocks, as begin within a block and length."""
    signatures = [position % period for position in range(period * blocks)] + ["tail"] * tail
    kept = intervals([1 << n for n in range(len(signatures))], repeated_runs(signatures))
    bounds = [((region & -region).bit_length() - 1, region.bit_length()) for region in kept]
    return {(begin % period, end - begin) for begin, end in bounds if end <= period * blocks}


@pytest.mark.parametrize("period", [2, 3, 5, 10])
def test_each_further_block_adds_one_region(period):
    counts = [len(classes(period, blocks)) for blocks in range(3, 7)]
    assert counts == list(range(counts[0], counts[0] + 4))


def test_without_runs_the_regions_grow_with_blocks_and_pieces():
    parts = [1 << n for n in range(40)]
    assert len(intervals(parts)) == 820
    assert len(intervals(parts, [RepeatedRun(0, 10, 4)])) == 523


@given(st.integers(1, 6), st.integers(3, 6), st.integers(0, 3))
def test_regions_across_one_border_and_whole_blocks_stay(period, blocks, tail):
    kept = classes(period, blocks, tail)
    for begin in range(period):
        assert {(begin, length) for length in range(1, 2 * period - begin + 1)} <= kept
    assert {(0, count * period) for count in range(1, blocks + 1)} <= kept


def test_long_runs_have_whole_blocks_on_a_grid():
    blocks, period = 200, 7
    signatures = [position % period for position in range(period * blocks)]
    regions = intervals([1 << n for n in range(len(signatures))], repeated_runs(signatures))
    assert len(regions) == len(set(regions)) < 30_000
    assert (1 << period * blocks) - 1 in regions
    whole = [region for region in regions if region.bit_count() == 16 * period]
    assert len(whole) >= blocks - 16

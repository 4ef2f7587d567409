"""Where boxes go."""

from itertools import pairwise

from collage.report.layout import BOX_WIDTH, lay_out


def test_a_chain_beside_skips_stays_straight():
    predecessors = [[place - 1] if place else [] for place in range(81)]
    for end in range(4, 81, 4):
        predecessors[end].append(end - 4)
    columns = {x for x, _ in lay_out(predecessors).centres}
    assert max(columns) - min(columns) < BOX_WIDTH


def test_sources_are_above():
    predecessors = [[], [0], [0], [1, 2], []]
    centres = lay_out(predecessors).centres
    for target, sources in enumerate(predecessors):
        assert all(centres[source][1] < centres[target][1] for source in sources)


def test_a_wide_rank_does_not_overlap():
    centres = lay_out([[], *[[0]] * 50]).centres
    columns = sorted(x for x, _ in centres[1:])
    assert all(b - a >= BOX_WIDTH for a, b in pairwise(columns))


def test_nothing_has_no_width_to_speak_of():
    assert lay_out([]).centres == ()

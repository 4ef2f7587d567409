"""How numbers and nodes are written."""

import pytest

from collage.report.formatting import duration, node_ranges, op_counts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "0.00 µs"), (4.5e-5, "45.0 µs"), (9.999e-4, "1.00 ms"), (0.01234, "12.3 ms"),
     (0.99996, "1.00 s"), (61.0, "61.0 s"), (123.4, "123 s"), (-2e-3, "-2.00 ms")],
)  # fmt: skip
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_node_ranges():
    assert node_ranges([]) == ""
    assert node_ranges([3, 1, 2, 9, 11, 12]) == "1-3, 9, 11-12"


def test_op_counts_names_few():
    assert op_counts("abcdea") == "a ×2, b, c, d, 1 more"

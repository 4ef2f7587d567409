"""Formatting of numbers and names, shared by the terminal and the page."""

import math
from collections.abc import Collection, Iterable, Sequence

MISSING = "–"


def finite_or_none(value: float) -> float | None:
    """Return the value, or None where it is infinite or not a number."""
    return value if math.isfinite(value) else None


def duration(seconds: float | None) -> str:
    """Format seconds with three significant digits and a unit: `1.23 ms`, `45.0 µs`, `12.3 s`.

    >>> duration(0.00123), duration(4.5e-5), duration(None)
    ('1.23 ms', '45.0 µs', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * factor >= 0.9995:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds * 1e6)} µs"


def size(size_bytes: int) -> str:
    """Write a size in MiB.

    >>> size(100 << 20), size(1 << 18)
    ('100 MiB', '0.25 MiB')
    """
    return f"{_three_digits(size_bytes / (1 << 20))} MiB"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


def node_ranges(nodes: Iterable[int]) -> str:
    """Format indices as ranges.

    >>> node_ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for index in sorted(nodes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def op_counts(ops: Iterable[str], limit: int = 4) -> str:
    """Count the operators of a region, in order of first use.

    >>> op_counts(["Conv", "Relu", "Conv"])
    'Conv ×2, Relu'
    """
    counts: dict[str, int] = {}
    for op in ops:
        counts[op] = counts.get(op, 0) + 1
    texts = [op if count == 1 else f"{op} ×{count}" for op, count in counts.items()]
    hidden_count = len(texts) - limit
    return ", ".join(texts[:limit]) + (f", {hidden_count} more" if hidden_count > 0 else "")


def precision_text(precision: str, error: float | None = None) -> str:
    """Format the precision of a region, with its error for reduced precision.

    >>> precision_text("bf16", 0.00312), precision_text("int8"), precision_text("")
    ('bf16, error 0.0031', 'int8', '')
    """
    return f"{precision}, error {error:.2g}" if error else precision


def printable(text: str) -> str:
    """Replace control characters, so that names from a model cannot control a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def aligned_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()
) -> str:
    """Align the columns of a table, without control characters.

    Args:
        header: titles of the columns.
        rows: cells of each row.
        right: numbers of the columns with alignment to the right.
    """
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )

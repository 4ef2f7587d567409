"""Repeated blocks of a sequence: the layers of a transformer, the calls of a local function.

A region from the middle of one block to the middle of another one is new for each number of blocks between,
and k blocks of p pieces have p*p*k of them. Each would be measured by itself, although it differs by parts of
two blocks only from a region that ends at their borders. So regions across several borders begin and end at
borders: then all blocks together have as many different regions as three of them, and one more for each
number of whole blocks.

A run is found by its period: where each piece is like the one a period later, three times or more. A wrong
run costs candidates and never correctness. Time is linear in the pieces times `MAX_PERIOD`.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

MIN_BLOCKS = 3
"""Smallest number of equal blocks of a run: two have no region across several borders."""
MAX_PERIOD = 64
"""Largest number of pieces of a block."""


@dataclass(frozen=True)
class RepeatedRun:
    """Equal blocks in sequence.

    Attributes:
        begin: position of the first block's first piece.
        period: number of pieces of a block.
        blocks: number of blocks.
    """

    begin: int
    period: int
    blocks: int

    @property
    def end(self) -> int:
        """Position behind the last block."""
        return self.begin + self.period * self.blocks

    def excludes(self, begin: int, end: int) -> bool:
        """Tell whether an interval of pieces crosses several borders and begins or ends inside a block."""
        if not (self._is_inside(begin) or self._is_inside(end)):
            return False
        first = max(0, (begin - self.begin) // self.period + 1)
        last = min(self.blocks, (end - 1 - self.begin) // self.period)
        return last > first

    def _is_inside(self, position: int) -> bool:
        is_within = self.begin < position < self.end
        return is_within and (position - self.begin) % self.period != 0


def repeated_runs(signatures: Sequence[Hashable]) -> list[RepeatedRun]:
    """Return the runs of equal blocks, by period; none lies within a run of a shorter period.

    Args:
        signatures: what the pieces are like, in order.

    >>> repeated_runs("xababab")
    [RepeatedRun(begin=1, period=2, blocks=3)]
    """
    runs: list[RepeatedRun] = []
    for period in range(1, min(MAX_PERIOD, len(signatures) // MIN_BLOCKS) + 1):
        for run in _runs(signatures, period):
            if not any(other.begin <= run.begin and run.end <= other.end for other in runs):
                runs.append(run)
    return runs


def _runs(signatures: Sequence[Hashable], period: int) -> Iterator[RepeatedRun]:
    """Yield the runs of one period: maximal stretches of pieces that are like those a period later."""
    begin = 0
    for position in range(len(signatures) - period + 1):
        is_last = position + period == len(signatures)
        if is_last or signatures[position] != signatures[position + period]:
            blocks = (position - begin + period) // period
            if blocks >= MIN_BLOCKS:
                yield RepeatedRun(begin, period, blocks)
            begin = position + 1

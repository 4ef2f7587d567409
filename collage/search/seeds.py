"""Seeds of a lazy search: the keys to measure first, as tilings of the function.

The largest tiles make a plan known at once; smaller tiles teach the estimator the cost of each node.
"""

from collections.abc import Container, Hashable, Iterable, Iterator

from collage.graph.index_set import first
from collage.rules.rule import HOST
from collage.search.problem import Option, Problem

TILE_SIZES = (1, 4, 16, 64)
"""Largest number of nodes of a tile, ascending."""
SEED_BATCH = 24
"""Smallest number of seeds measured together."""


def seed_chunks(
    problem: Problem, batch: int = SEED_BATCH, known_keys: Container[Hashable] = ()
) -> Iterator[list[Hashable]]:
    """Yield the keys to measure first: tilings of the function by the options of each backend.

    The first chunk holds the largest tiles, so that one plan is known at once. Smaller and smaller tiles
    follow; tiles with known costs replace others there, since they teach as much and cost nothing. With a
    batch above `SEED_BATCH` all chunks are full: such a measurer takes hardly longer for a few more keys.

    Args:
        problem: the function's search problem.
        batch: number of keys measured together.
        known_keys: keys with known costs.
    """
    yielded: set[Hashable] = set()
    backends = sorted({option.backend for option in problem.options} - {HOST})
    options = {
        backend: [option for option in problem.ordered if option.backend == backend]
        for backend in backends
    }
    largest = max(*TILE_SIZES, len(problem.graph))
    is_filled = batch > SEED_BATCH
    waiting: list[Hashable] = []
    for limit in (largest, *reversed(TILE_SIZES)):
        keys: dict[Hashable, None] = {}
        for backend in backends:
            tiles = tiling(options[backend], limit, () if limit == largest else known_keys)
            keys |= dict.fromkeys(option.key for option in tiles)
        waiting += [key for key in keys if key not in yielded]
        yielded.update(waiting)
        size = batch if is_filled or limit != largest else len(waiting)
        while len(waiting) >= size if is_filled else waiting:
            yield waiting[:size]
            waiting = waiting[size:]
    if waiting:
        yield waiting


def tiling(
    options: Iterable[Option], limit: int, known_keys: Container[Hashable] = ()
) -> list[Option]:
    """Choose disjoint options greedily by first node, the largest of at most `limit` nodes each.

    Options with known costs come before larger ones without.
    """
    by_first: dict[int, list[Option]] = {}
    for option in options:
        if option.size <= limit:
            by_first.setdefault(first(option.nodes), []).append(option)
    covered, chosen = 0, []
    for start in sorted(by_first):
        free = [option for option in by_first[start] if not option.nodes & covered]
        if free:
            free = [option for option in free if option.key in known_keys] or free
            size = max(option.size for option in free)
            largest = [option for option in free if option.size == size]
            chosen += largest
            covered |= largest[0].nodes
    return chosen

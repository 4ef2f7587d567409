"""A set of node indices as one Python int: union, intersection and difference are single operations.

RFC "Util Datatypes", `IndexSet`. The alias keeps signatures readable; the functions below are the
few operations that int does not have.
"""

from collections.abc import Iterable, Iterator

IndexSet = int


def index_set(indices: Iterable[int]) -> IndexSet:
    """Make the set of `indices`."""
    bits = 0
    for index in indices:
        bits |= 1 << index
    return bits


def indices(bits: IndexSet) -> Iterator[int]:
    """Yield the members in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def first(bits: IndexSet) -> int:
    """Return the smallest member; `bits` must not be empty."""
    return (bits & -bits).bit_length() - 1


def is_subset(inner: IndexSet, outer: IndexSet) -> bool:
    """Tell whether every member of `inner` is in `outer`."""
    return inner & ~outer == 0

"""Feeds of smaller shapes, cut from feeds of the compiled shapes.

Open axes with one name are cut alike, so that a mask stays as long as its ids. Values are not drawn anew.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from collage.frontend.original_interface import OriginalInterface

Axis = tuple[str, int]
"""Name of an input and number of its axis."""


def smaller_feeds(
    interface: OriginalInterface,
    feeds: Sequence[Mapping[str, np.ndarray]],
    axes: Collection[Axis] | None = None,
) -> list[dict[str, np.ndarray]]:
    """Return each feed twice: with its open axes at two thirds, and one element shorter.

    Args:
        interface: inputs of the model.
        feeds: inputs by name.
        axes: axes to cut, with those of the same name; None: all open ones.
    """
    smaller = []
    for feed in feeds:
        shapes = [{name: array.shape for name, array in feed.items()}]
        for shorter in (_two_thirds, _one_less):
            cut = {
                name: tuple(
                    max(1, shorter(extent)) if _is_cut(interface, (name, axis), axes) else extent
                    for axis, extent in enumerate(array.shape)
                )
                for name, array in feed.items()
            }
            if cut not in shapes:
                shapes.append(cut)
                smaller.append(_sliced(feed, cut))
    return smaller


def _two_thirds(extent: int) -> int:
    return -(-extent * 2 // 3)


def _one_less(extent: int) -> int:
    return extent - 1


def _sliced(
    feed: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    return {
        name: np.ascontiguousarray(array[tuple(map(slice, shapes[name]))])
        for name, array in feed.items()
    }


def _is_cut(interface: OriginalInterface, axis: Axis, axes: Collection[Axis] | None) -> bool:
    """Tell whether an axis is cut: it is open, and one of `axes` or named like one."""
    name, number = axis
    value = next((value for value in interface.inputs if value.name == name), None)
    if value is None or value.shape is None or value.shape[number] != -1:
        return False
    if axes is None or axis in axes:
        return True
    names = {interface.dim_name(*cut) for cut in axes} - {""}
    return interface.dim_name(name, number) in names

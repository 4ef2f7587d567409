"""Dispatch of a bundle's calls: to the function of these shapes, else to the original model.

A call takes the first of these ways that fits its inputs:

1. a function of the executable with exactly these names and shapes;
2. the fallback: the original model in its framework, if the bundle has it.

Each way is counted, and the fallback's calls by shape, so that operators see which shapes to compile next.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from collage.errors import InputError
from collage.runtime.arrays import as_tensor
from collage.runtime.original_session import OriginalSession
from collage.runtime.session import ExecutableSession, Outputs, shapes_text
from collage.runtime.tensor_exchange import DeviceTensor

MAX_COUNTED_SHAPES = 256
"""Different shapes with a count of their own; calls of further ones are counted together."""
FURTHER_SHAPES = "further shapes"


@dataclass(frozen=True)
class DispatchCounts:
    """Numbers of calls by the way they took.

    Attributes:
        functions: calls by function of the executable.
        fallback: calls of the original model.
        fallback_shapes: the same by the shapes of the inputs, e.g. "x: [3, 8]".
    """

    functions: Mapping[str, int]
    fallback: int
    fallback_shapes: Mapping[str, int]


class Dispatcher:
    """Ways through one bundle; calls may come from any thread."""

    def __init__(self, session: ExecutableSession | None, original: OriginalSession | None) -> None:
        """Dispatch to the executable's session, the original model's, or both."""
        self._session, self._original = session, original
        self._shapes: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, feeds: Mapping[str, object]) -> Outputs:
        """Compute the outputs for `feeds`, by name.

        Raises:
            InputError: no way takes these names, shapes or dtypes.
        """
        if self._session is not None:
            outputs = self._session.run_if_taken(feeds)
            if outputs is not None:
                return outputs
        return self._run_original(feeds)

    def run_tensors(self, feeds: Mapping[str, object], stream: int) -> dict[str, DeviceTensor]:
        """Compute the outputs as tensors; those of the original model are on the host.

        Raises:
            InputError: as of `run`; or an output of the original model is no tensor of numbers.
        """
        if self._session is not None:
            outputs = self._session.run_tensors_if_taken(feeds, stream)
            if outputs is not None:
                return outputs
        return {
            name: DeviceTensor(as_tensor(_numbers(name, value)))
            for name, value in self._run_original(feeds).items()
        }

    def counts(self) -> DispatchCounts:
        """Return the numbers of calls so far."""
        with self._lock:
            shapes = dict(self._shapes)
        calls = dict(self._session.calls) if self._session else {}
        return DispatchCounts(calls, sum(shapes.values()), shapes)

    def _run_original(self, feeds: Mapping[str, object]) -> Outputs:
        if self._original is None:
            assert self._session is not None, "a bundle has an executable or a fallback"
            raise self._session.mismatch(feeds)
        outputs = self._original.run(feeds)
        self._count(shapes_text(feeds))
        return cast(Outputs, outputs)  # text is an array too; a sequence is a list, a map a dict

    def _count(self, shapes: str) -> None:
        with self._lock:
            if shapes not in self._shapes and len(self._shapes) >= MAX_COUNTED_SHAPES:
                shapes = FURTHER_SHAPES
            self._shapes[shapes] = self._shapes.get(shapes, 0) + 1


def _numbers(name: str, value: object) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    raise InputError(f"output {name!r} is no tensor of numbers; call `run`, not `run_tensors`")

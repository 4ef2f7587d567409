"""Dispatch of a bundle's calls: to the function of these shapes, else to the original model.

A call takes the first of these ways that fits its inputs:

1. a function of the executable with exactly these names and shapes;
2. a function with larger shapes, where only axes differ that may be padded (`collage.runtime.padding`);
3. the fallback: the original model in its framework, if the bundle has it.

An input with a default is a constant of the functions; a call that gives such an input takes the third way.
Where the user compiled with values of such an input, it is an input of the functions, and a call that leaves
it out has the default.

Each way is counted, and the calls of the last two by shape, so that operators see which shapes to compile
next.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from collage.errors import InputError
from collage.runtime.arrays import as_array, as_tensor
from collage.runtime.original_session import OriginalSession
from collage.runtime.padding import PaddedAxis, Padding, cropped
from collage.runtime.session import ExecutableSession, Outputs, shapes_text
from collage.runtime.tensor_exchange import DeviceTensor, is_on_gpu, receive

MAX_COUNTED_SHAPES = 256
"""Different shapes with a count of their own; calls of further ones are counted together."""
FURTHER_SHAPES = "further shapes"


@dataclass(frozen=True)
class DispatchCounts:
    """Numbers of calls by the way they took.

    Attributes:
        functions: calls by function of the executable, with its own shapes.
        padded: the same with padded inputs.
        fallback: calls of the original model.
        padded_shapes: calls with padded inputs by the shapes of the caller, e.g. "x: [3, 8]".
        fallback_shapes: calls of the original model by shapes.
    """

    functions: Mapping[str, int]
    padded: Mapping[str, int]
    fallback: int
    padded_shapes: Mapping[str, int]
    fallback_shapes: Mapping[str, int]


class Dispatcher:
    """Ways through one bundle; calls may come from any thread."""

    def __init__(
        self,
        session: ExecutableSession | None,
        original: OriginalSession | None,
        axes: Sequence[PaddedAxis] = (),
        *,
        defaults: Collection[str] = (),
        default_values: Mapping[str, np.ndarray] = {},
    ) -> None:
        """Dispatch to the executable's session, the original model's, or both.

        Args:
            session: session of the entry's functions; None without.
            original: session of the original model; None without.
            axes: axes that may be padded to a function's shapes; default none.
            defaults: names of the inputs whose defaults are constants of the functions; default none.
            default_values: values of inputs of the functions that callers may leave out; default none.
        """
        self._default_values = dict(default_values)
        self._defaults = frozenset(defaults)
        self._session, self._original = session, original
        self._padding = _padding(session, axes) if session and axes else None
        self._padding_lock = threading.Lock()
        self._padded_functions: dict[str, int] = {}
        self._padded, self._other = _ShapeCounts(), _ShapeCounts()

    def run(self, feeds: Mapping[str, object]) -> Outputs:
        """Compute the outputs for `feeds`, by name.

        Raises:
            InputError: no way takes these names, shapes or dtypes.
        """
        if self._default_values:
            feeds = {**self._default_values, **feeds}
        if self._session is not None:
            outputs = self._session.run_if_taken(feeds)
            if outputs is not None:
                return outputs
            if self._padding is not None:
                outputs = self._run_padded(self._session, self._padding, feeds)
                if outputs is not None:
                    return outputs
        return self._run_original(feeds)

    def run_tensors(self, feeds: Mapping[str, object], stream: int) -> dict[str, DeviceTensor]:
        """Compute the outputs as tensors; those of the original model are on the host.

        Raises:
            InputError: see `run`; or an output of the original model is no tensor of numbers.
        """
        if self._default_values:
            feeds = {**self._default_values, **feeds}
        if self._session is not None:
            outputs = self._session.run_tensors_if_taken(feeds, stream)
            if outputs is not None:
                return outputs
        return {
            name: DeviceTensor(as_tensor(_numbers(name, value)))
            for name, value in self.run(feeds).items()
        }

    def counts(self) -> DispatchCounts:
        """Return the numbers of calls so far."""
        with self._padding_lock:
            padded = dict(self._padded_functions)
        calls = self._session.calls if self._session else {}
        exact = {name: count - padded.get(name, 0) for name, count in calls.items()}
        other = self._other.copy()
        return DispatchCounts(
            exact, padded, sum(other.values()), self._padded.copy(), fallback_shapes=other
        )

    def _run_padded(
        self, session: ExecutableSession, padding: Padding, feeds: Mapping[str, object]
    ) -> Outputs | None:
        """Run with padded inputs; None if no function can take them."""
        with self._padding_lock:
            arrays = _host_arrays(feeds)
            way = padding.find({name: array.shape for name, array in arrays.items()})
            if way is None:
                return None
            padding.check(arrays)
            outputs = session.run(padding.padded(arrays, way))
            function = way.function
            self._padded_functions[function] = self._padded_functions.get(function, 0) + 1
        self._padded.add(shapes_text(arrays))
        return cropped(outputs, way)

    def _run_original(self, feeds: Mapping[str, object]) -> Outputs:
        if self._original is None:
            assert self._session is not None, "a bundle has an executable or a fallback"
            raise self._default_refusal(feeds) or self._session.mismatch(feeds)
        outputs = self._original.run(feeds)
        self._other.add(shapes_text(feeds))
        return cast(Outputs, outputs)  # text is an array too; a sequence is a list, a map a dict

    def _default_refusal(self, feeds: Mapping[str, object]) -> InputError | None:
        """Return the error for inputs with a default; None without such inputs."""
        names = sorted(self._defaults & feeds.keys())
        if not names:
            return None
        return InputError(
            f"the bundle has the default of {', '.join(map(repr, names))} as a constant, and no fallback "
            "for another value: leave the input out, compile with a sample of it (--input "
            f"{names[0]}=VALUE), or compile for the CPU without --exact-only and --no-fallback"
        )


class _ShapeCounts:
    """Numbers of calls by shapes; calls from any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, shapes: str) -> None:
        """Count a call."""
        with self._lock:
            if shapes not in self._counts and len(self._counts) >= MAX_COUNTED_SHAPES:
                shapes = FURTHER_SHAPES
            self._counts[shapes] = self._counts.get(shapes, 0) + 1

    def copy(self) -> dict[str, int]:
        """Return the numbers so far."""
        with self._lock:
            return dict(self._counts)


def _padding(session: ExecutableSession, axes: Sequence[PaddedAxis]) -> Padding:
    functions = {
        signature.function: {tensor.name: tensor.shape or () for tensor in signature.inputs}
        for signature in session.signatures
    }
    dtypes = {
        tensor.name: tensor.dtype for signature in session.signatures for tensor in signature.inputs
    }
    return Padding(axes, functions, dtypes)


def _host_arrays(feeds: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the inputs as arrays; those on a GPU are left out, since they are not padded."""
    values = {name: receive(name, value, 0) for name, value in feeds.items()}
    return {
        name: value if isinstance(value, np.ndarray) else as_array(value)
        for name, value in values.items()
        if not is_on_gpu(value)
    }


def _numbers(name: str, value: object) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    raise InputError(f"output {name!r} is no tensor of numbers; call `run`, not `run_tensors`")

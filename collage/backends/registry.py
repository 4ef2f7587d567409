"""Which backends there are: the built-in ones and those of installed packages.

A package adds a backend by an entry point in the group `collage.backends` that names a `Backend`
subclass. A package that fails to import is listed as unavailable with its error; it never stops
anything else.
"""

import functools
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points

from collage.backends.base import Availability, Backend, Kernel
from collage.errors import BackendError, OptionError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.rules.rule import PartitionRule

GROUP = "collage.backends"

BUILT_IN = {
    "onnxruntime": "collage.backends.onnxruntime:OnnxRuntimeBackend",
    "openvino": "collage.backends.openvino:OpenVinoBackend",
    "onednn": "collage.backends.onednn:OneDnnBackend",
    "tvm": "collage.backends.tvm:TvmBackend",
}


class BrokenBackend(Backend):
    """Stands for a backend whose package does not import."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def availability(self) -> Availability:
        return Availability(self._reason)

    def unsupported(self, function: Function, node: int) -> str | None:
        return self._reason

    def compile(
        self, function: Function, nodes: IndexSet, threads: int, variant: str = ""
    ) -> Kernel:
        raise BackendError(self._reason)


def all_backends() -> list[Backend]:
    """Make every known backend, available or not, built-in ones first, by name."""
    found = {name: _load(name, functools.partial(_import, path)) for name, path in BUILT_IN.items()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found.setdefault(entry.name, _load(entry.name, entry.load))
    return list(found.values())


def available_backends(names: Sequence[str] | None = None) -> list[Backend]:
    """Make the backends `names`, in that order; all that are available by default.

    Raises:
        OptionError: an unknown name, or a named backend that cannot be used here, with the reason.
    """
    known = {backend.name: backend for backend in all_backends()}
    if names is None:
        return [backend for backend in known.values() if backend.availability().available]
    chosen = []
    for name in names:
        if name not in known:
            raise OptionError(f"unknown backend {name!r}; there are {', '.join(sorted(known))}")
        if reason := known[name].availability().reason:
            raise OptionError(f"backend {name} cannot be used here: {reason}")
        chosen.append(known[name])
    return chosen


def with_rule(backend: Backend, rule: Callable[[Function], PartitionRule | None]) -> Backend:
    """Give `backend` a rule of the user's in place of its own."""
    backend.rule = rule  # type: ignore[method-assign, assignment]
    return backend


def _import(path: str) -> type[Backend]:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _load(name: str, load: Callable[[], type[Backend]]) -> Backend:
    try:
        return load()()
    except Exception as error:  # a stranger's code: whatever it raises is the reason
        return BrokenBackend(name, f"does not load: {type(error).__name__}: {error}")

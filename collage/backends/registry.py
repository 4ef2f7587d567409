"""Which backends there are: the built-in ones and those of installed packages.

A package adds a backend by an entry point in the group `collage.backends` that names a `Backend`
subclass. A package that fails to import is listed as unavailable with its error; it never stops
anything else. A class that is not installed is named as `module:Class`, or handed over as an object.

Processes that measure make their own backends, from the class path: it is all that travels. So a class
can be made without arguments, and lives in a module that can be imported. A rule need not travel: it
lists candidates, which the process that searches does alone.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from collage.backends.base import Availability, Backend, Kernel, Part
from collage.errors import BackendError, OptionError
from collage.frontend.model import Function
from collage.graph.index_set import IndexSet
from collage.rules.rule import PartitionRule

GROUP = "collage.backends"

BUILT_IN = {
    "blocked": "collage.backends.cpu.blocked:BlockedBackend",
    "onnxruntime": "collage.backends.cpu.onnxruntime:OnnxRuntimeBackend",
    "openvino": "collage.backends.cpu.openvino:OpenVinoBackend",
    "onednn": "collage.backends.cpu.onednn:OneDnnBackend",
    "tvm": "collage.backends.cpu.tvm:TvmBackend",
    "winograd": "collage.backends.cpu.winograd:WinogradBackend",
    "tvm-cuda": "collage.backends.nvidia.tvm_cuda:TvmCudaBackend",
    "cublas": "collage.backends.nvidia.cublas:CublasBackend",
    "cudnn": "collage.backends.nvidia.cudnn:CudnnBackend",
    "cutlass": "collage.backends.nvidia.cutlass:CutlassBackend",
    "tensorrt": "collage.backends.nvidia.tensorrt:TensorRtBackend",
    "onnxruntime-host": "collage.backends.nvidia.on_host:OnHostBackend",
    "onnxruntime-cuda": "collage.backends.nvidia.onnxruntime_cuda:OnnxRuntimeCudaBackend",
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
    backends = {
        name: _load(name, functools.partial(_import, path)) for name, path in BUILT_IN.items()
    }
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if entry.name in backends:
            duplicate = BrokenBackend(
                f"{entry.name} ({_package(entry)})", "another one has this name"
            )
            backends[duplicate.name] = duplicate
        else:
            backends[entry.name] = _load(entry.name, entry.load)
    return list(backends.values())


def available_backends(
    chosen: Sequence[str | Backend] | None = None,
    device: str = "cpu",
    part: Part = Part.ALL,
) -> list[Backend]:
    """Make the backends `chosen`, in that order; by default all of `device` that are available.

    Args:
        chosen: names, class paths (`module:Class`), or backends, which are taken as they are.
        device: where the kernels are to run, one of `collage.options.DEVICES`.
        part: of the work, where another machine does the rest.

    Raises:
        OptionError: an unknown name, two of one name, or a backend that cannot be used here, with the
            reason.
    """
    if chosen is None:
        return [
            backend
            for backend in known_backends(None, device)
            if backend.available_for(part).available
        ]
    by_name: dict[str, Backend] = {}
    for backend in known_backends(chosen, device):
        if reason := backend.available_for(part).reason:
            raise OptionError(f"backend {backend.name} cannot be used here: {reason}")
        if backend.name in by_name:
            raise OptionError(f"two backends are called {backend.name!r}")
        class_path(backend)
        by_name[backend.name] = backend
    return list(by_name.values())


def known_backends(chosen: Sequence[str | Backend] | None, device: str) -> list[Backend]:
    """Make the backends `chosen`, or all of `device`, whether they can be used here or not.

    Raises:
        OptionError: an unknown name, or a backend of another device.
    """
    if chosen is None:
        return [backend for backend in all_backends() if backend.device == device]
    backends = list(_find(chosen))
    for backend in backends:
        if backend.device != device and not isinstance(backend, BrokenBackend):
            raise OptionError(
                f"backend {backend.name} runs on {backend.device}, not on {device}: "
                f"add --device {backend.device}"
            )
    return backends


def names_on(chosen: Sequence[str] | None, device: str) -> tuple[str, ...] | None:
    """Return those of the backends `chosen` (names, class paths) that run on `device`; None stays None.

    Raises:
        OptionError: an unknown name, or none of them does.
    """
    if chosen is None:
        return None
    pairs = zip(chosen, _find(chosen), strict=True)
    names = tuple(
        name
        for name, backend in pairs
        if backend.device == device or isinstance(backend, BrokenBackend)
    )
    if chosen and not names:
        known_names = ", ".join(backend.name for backend in known_backends(None, device))
        raise OptionError(
            f"none of the backends {', '.join(chosen)} runs on {device}; there are {known_names}"
        )
    return names


def class_path(backend: Backend) -> str:
    """How another process makes this backend: `module:Class`.

    Raises:
        OptionError: the class cannot be imported there.
    """
    kind = type(backend)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise OptionError(
            f"backend {backend.name}: the processes that measure cannot import {kind.__qualname__}; "
            "write the class at the top level of a module of its own"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def with_rule(backend: Backend | str, rule: Callable[[Function], PartitionRule | None]) -> Backend:
    """Return `backend` (or the one of that name) with a rule of the user's in place of its own.

    The rule lists candidates of several nodes; every single node that the backend supports stays a
    candidate. See "Give a backend another rule" in `docs/add-a-backend.md`.
    """
    (changed,) = map(copy.copy, _find([backend]))
    changed.rule = rule  # type: ignore[method-assign, assignment]
    return changed


def with_folders(backend: Backend, recipes: Path, cache: Path) -> Backend:
    """Return a copy of `backend` with these folders (see `Backend.recipes`, `Backend.cache`)."""
    changed = copy.copy(backend)
    changed.recipes, changed.cache = recipes, cache
    return changed


def as_elsewhere(backend: Backend, identity: str) -> Backend:
    """Return a copy of `backend` that is the one of the machine that measures (`Backend.elsewhere`)."""
    changed = copy.copy(backend)
    changed.elsewhere = identity
    return changed


def _find(chosen: Sequence[str | Backend]) -> Iterator[Backend]:
    """Names need all that there are; workers, which get class paths, import only what they use."""
    by_name: dict[str, Backend] = {}
    for choice in chosen:
        if isinstance(choice, Backend):
            yield choice
        elif ":" in choice:
            yield _load("", functools.partial(_import, choice), choice)
        else:
            by_name = by_name or {backend.name: backend for backend in all_backends()}
            if choice not in by_name:
                raise OptionError(
                    f"unknown backend {choice!r}; there are {', '.join(sorted(by_name))}"
                )
            yield by_name[choice]


def _import(path: str) -> type[Backend]:
    module, _, name = path.partition(":")
    target: object = import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target  # type: ignore[return-value]


def _load(name: str, load: Callable[[], type[Backend]], shown: str = "") -> Backend:
    """Make a backend that is called `name` ("": whatever it calls itself), or a broken one."""
    try:
        backend = load()()
        if not isinstance(backend, Backend):
            raise TypeError(f"{type(backend).__name__} is no Backend")
        if name and backend.name != name:
            raise ValueError(f"it is registered as {name!r} and calls itself {backend.name!r}")
        backend.availability()
    except Exception as error:  # a stranger's code: whatever it raises is the reason
        return BrokenBackend(name or shown, f"does not load: {type(error).__name__}: {error}")
    return backend


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value

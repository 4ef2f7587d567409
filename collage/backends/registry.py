"""The registry of backends: built-in ones and those of installed packages.

A package adds a backend by an entry point in the group `collage.backends`; it names a `Backend` subclass. A
package with an import error is listed as unavailable with the error and stops nothing else. A class without
an entry point is given as `module:Class` or as an object.

Measuring processes create their own backends from the class path alone. So the class needs a constructor
without arguments and an importable module. A rule may be any object: only the searching process lists
candidates.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from collage.backends.base import Availability, Backend, BackendRole, BuildContext, Kernel
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
    """Placeholder for a backend with an import error."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    def availability(self) -> Availability:
        return Availability(self._reason)

    def unsupported(self, function: Function, node: int) -> str | None:
        return self._reason

    def compile(
        self, function: Function, nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> Kernel:
        raise BackendError(self._reason)


def all_backends() -> list[Backend]:
    """Create every known backend, available or not; built-in ones first, then by name."""
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
    part: BackendRole = BackendRole.ALL,
) -> list[Backend]:
    """Create the backends `chosen`, in that order.

    Args:
        chosen: names, class paths (`module:Class`) or backend objects; None: all available ones of `device`.
        device: device of the kernels, one of `collage.options.DEVICES`.
        part: role of this machine.

    Raises:
        OptionError: an unknown name, two backends of one name, or an unavailable backend, with the reason.
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
    """Create the backends `chosen`, available or not; None: all of `device`.

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
    """Return the names or class paths in `chosen` of backends on `device`; None for None.

    Raises:
        OptionError: an unknown name, or no backend on `device`.
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
    """Return the backend's class path for other processes, `module:Class`.

    Raises:
        OptionError: other processes cannot import the class.
    """
    kind = type(backend)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise OptionError(
            f"backend {backend.name}: the processes that measure cannot import {kind.__qualname__}; "
            "write the class at the top level of a module of its own"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def with_rule(backend: Backend | str, rule: Callable[[Function], PartitionRule | None]) -> Backend:
    """Return a copy of `backend` (object or name) with the user's rule.

    The rule lists candidates of several nodes; every single supported node remains a candidate. See "Give a
    backend another rule" in `docs/add-a-backend.md`.
    """
    (changed,) = map(copy.copy, _find([backend]))
    changed.rule = rule  # type: ignore[method-assign, assignment]
    return changed


def _find(chosen: Sequence[str | Backend]) -> Iterator[Backend]:
    """Names need all backends; class paths (in workers) import only their own module."""
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
    """Create a backend; a `BrokenBackend` on any error. `name` "" accepts the backend's own name."""
    try:
        backend = load()()
        if not isinstance(backend, Backend):
            raise TypeError(f"{type(backend).__name__} is no Backend")
        if name and backend.name != name:
            raise ValueError(f"it is registered as {name!r} and calls itself {backend.name!r}")
        backend.availability()
    except Exception as error:  # noqa: BLE001 - code of users: any exception is the reason
        return BrokenBackend(name or shown, f"does not load: {type(error).__name__}: {error}")
    return backend


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value

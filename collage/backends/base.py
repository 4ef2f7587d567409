"""The interface of a backend: a name, refusals of operators, a rule for candidates, a compiler of regions.

A refused region does not stop the search: `compile` raises `BackendError` with the reason, and the measurer
turns it into an invalid cost.
"""

import abc
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import numpy as np

from collage.errors import BackendError
from collage.graph.index_set import IndexSet, index_set
from collage.rules.backend_style import BackendStyle as BackendStyle  # for authors of backends
from collage.rules.composites import LabelledNodes
from collage.runtime.cpu import bf16_reason

if TYPE_CHECKING:
    import tvm

    from collage.frontend.model import Function
    from collage.rules.rule import PartitionRule


class BackendRole(Enum):
    """Role of a machine for a backend: build and run kernels, or only one of both."""

    ALL = "all"
    BUILD = "build"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Availability:
    """Availability on this machine: `reason` is "" if available; `libraries` maps library to version."""

    reason: str
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def available(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a backend builds with: the same for all kernels of a compile.

    Attributes:
        threads: number of threads of every kernel.
        tuned_schedules_dir: folder of the tuned schedules, by name; None without tuned variants.
        cache_dir: folder for results of slow compilations; None: the user's local store.
        bodies_dir: folder of the plans for bodies of control flow; None without partitioned bodies.
    """

    threads: int
    tuned_schedules_dir: Path | None = None
    cache_dir: Path | None = None
    bodies_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class PluginKernel:
    """A kernel of the C++ plug-in: `collage.create_module(kind, symbol, blob)`.

    Its arguments are the region's inputs, then its outputs (contiguous tensors), in the order of
    `region_values`. A kernel with `allocates` gets the inputs alone and returns its outputs, one tensor or an
    array of several: for outputs with a data-dependent shape.

    Attributes:
        kind: kind of the kernel in the plug-in.
        blob: header and tensors.
        allocates: whether the kernel allocates its outputs.
        graph_capturable: whether a CUDA graph may capture the kernel: it never waits for the host.
        libraries: names of the vendor libraries that a serving machine needs for the kernel
            (`collage.runtime.plugin.LIBRARIES`, `register_library`); the bundle's manifest requires
            them. There is no default: a forgotten library would be missed by users of the bundle only.
    """

    kind: str
    blob: bytes
    allocates: bool = False
    graph_capturable: bool = True
    libraries: frozenset[str] = field(kw_only=True)


@dataclass(frozen=True)
class TirKernel:
    """A kernel of one TIR function, `symbol` of `module`.

    Its arguments are inputs, then `constants`, then outputs. `libraries`: see `PluginKernel`.
    """

    module: "tvm.IRModule"
    symbol: str
    constants: tuple[np.ndarray, ...] = ()
    device: str = "cpu"
    libraries: frozenset[str] = field(default=frozenset(), kw_only=True)


@dataclass(frozen=True)
class CudaKernel:
    """A kernel compiled by nvcc: function `symbol` of the shared library `file`.

    Its arguments are device tensors: inputs, then `constants`, then scratch memory of `scratch` bytes unless
    that is 0, then outputs. It runs on TVM's current stream. `libraries`: see `PluginKernel`; every bundle
    for a GPU has the CUDA runtime.
    """

    file: Path
    symbol: str
    constants: tuple[np.ndarray, ...] = ()
    scratch: int = 0
    libraries: frozenset[str] = field(default=frozenset(), kw_only=True)


Kernel = PluginKernel | TirKernel | CudaKernel
Unsupported = Callable[["Function", int], str | None]


class Backend(abc.ABC):
    """One toolchain. Subclass it and register the class (entry point group `collage.backends`)."""

    name: str
    style: BackendStyle = BackendStyle.LIBRARY
    device: str = "cpu"
    """Device of its kernels, one of `collage.options.DEVICES`."""
    conflicts: frozenset[str] = frozenset()
    """Names of backends with incompatible libraries: no plan and no process has both. One of the two
    declarations suffices."""
    algorithmic_savings: bool = False
    """Whether its algorithms need fewer FLOP than direct ones; its speed is then no estimate of the machine's
    peak."""
    spreads_nan: bool = False
    """Whether its kernels may turn elements into NaN that depend on none: a tile of Winograd's algorithm."""
    variants: tuple[str, ...] = ("",)
    """Names of its implementations of a region; each is a candidate of its own."""
    labels: tuple[str, ...] = ()
    """Labels of `Composite` rules: its implementations of certain regions, for `compile_labelled`."""
    reduced: Mapping[str, str] = MappingProxyType({})
    """Variants with products in reduced precision ("bf16", "tf32"), by name. They are candidates only with
    the user's permission, on regions with a product, within the error budget."""
    _remote_identity: str = ""
    draws_random_numbers: bool = False
    """Whether random operators draw as in the original model: ONNX Runtime's generators."""
    computes_on_host: bool = False
    """Whether its kernels for a GPU compute on the CPU; values that are pinned to the GPU exclude it."""
    graph_capturable: bool = True
    """Whether CUDA graphs may capture its kernels (`PluginKernel.graph_capturable`). In a plan with
    another kernel, the host launches every kernel."""

    @abc.abstractmethod
    def availability(self) -> Availability:
        """Return the versions of the toolchain on this machine, or the reason without it."""

    def available_for(self, role: BackendRole) -> Availability:
        """Return the availability for a role of this machine."""
        if role is BackendRole.BUILD:
            return self.building()
        return self.running() if role is BackendRole.RUN else self.availability()

    def building(self) -> Availability:
        """Return the availability for builds; another machine runs the kernels."""
        return self.availability()

    def running(self) -> Availability:
        """Return the availability for runs of kernels from another machine."""
        return self.availability()

    @abc.abstractmethod
    def unsupported(self, function: "Function", node: int) -> str | None:
        """Return why the backend does not compute `node`, None where it does."""

    @abc.abstractmethod
    def compile(
        self, function: "Function", nodes: IndexSet, context: BuildContext, variant: str = ""
    ) -> Kernel:
        """Compile a region.

        Args:
            function: function of the region.
            nodes: nodes of the region.
            context: number of threads, and folders.
            variant: name in `variants` or `reduced`.

        Raises:
            BackendError: the toolchain refuses the region; its message is the reason.
        """

    def compile_labelled(
        self,
        function: "Function",
        nodes: IndexSet,
        context: BuildContext,
        *,
        variant: str,
        composites: Sequence[LabelledNodes],
    ) -> Kernel:
        """Compile a region whose implementation a rule has chosen.

        Args:
            function: function of the region.
            nodes: nodes of the region.
            context: number of threads, and folders.
            variant: name in `variants` or `reduced`.
            composites: disjoint parts of the region with their labels, from `labels`; at least one.

        Raises:
            BackendError: the implementation refuses the region; its message is the reason.
        """
        names = ", ".join(composite.label for composite in composites)
        raise BackendError(f"{self.name} has no implementation {names}")

    def reduced_reason(self) -> str:
        """Return why this machine has no reduced-precision variants, "" where it has."""
        return bf16_reason() if self.reduced else ""

    def rule(self, function: "Function") -> "PartitionRule | None":
        """Return the rule for this backend's candidates; None means the style's default."""
        return None

    def supported_nodes(self, function: "Function") -> IndexSet:
        """Return the nodes without a reason of `unsupported`."""
        count = len(function.graph)
        return index_set(i for i in range(count) if self.unsupported(function, i) is None)

    @property
    def group(self) -> str:
        """Name of the group of backends in one measurement Job of a cluster; default: the style."""
        return self.style.value

    @property
    def identity(self) -> str:
        """Name and versions, a component of every cost key."""
        if self._remote_identity:
            return self._remote_identity
        versions = sorted(self.availability().libraries.items())
        return f"{self.name} " + " ".join(f"{lib}={version}" for lib, version in versions)

    def with_identity(self, identity: str) -> Self:
        """Return a copy with this identity: the backend's on another machine, which measures."""
        copied = copy.copy(self)
        copied._remote_identity = identity
        return copied


def conflicts_of(backends: Iterable[Backend]) -> dict[str, frozenset[str]]:
    """Return the conflicting names by backend; backends without conflicts are left out."""
    listed = list(backends)
    conflicts = {
        backend.name: frozenset(
            candidate.name
            for candidate in listed
            if candidate.name in backend.conflicts or backend.name in candidate.conflicts
        )
        for backend in listed
    }
    return {name: names for name, names in conflicts.items() if names}

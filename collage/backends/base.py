"""What a backend is: a name, a reason per operator it does not take, a rule, and a compiler of regions.

A backend never raises for a region that it cannot compile in the search: `compile` raises
`BackendError` with the reason and the measurer turns that into an invalid cost.
"""

import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from collage.graph.index_set import IndexSet, index_set
from collage.runtime.cpu import bf16_reason

if TYPE_CHECKING:
    import tvm

    from collage.frontend.model import Function
    from collage.rules.rule import PartitionRule


class BackendStyle(Enum):
    """Which default rule lists a backend's candidates (DESIGN 4.2)."""

    NATIVE = "native"
    LIBRARY = "library"
    GRAPH = "graph"


class Part(Enum):
    """What a machine does with a backend: all, or what another machine does not."""

    ALL = "all"
    BUILD = "build"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Availability:
    """`reason` is "" when the backend can be used here; `libraries` maps library to version."""

    reason: str
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def available(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class PluginKernel:
    """A kernel that the C++ plug-in runs: `collage.create_module(kind, symbol, blob)`.

    Called with the region's inputs then its outputs (contiguous CPU tensors), in the order of
    `region_values`. A kernel that `allocates` is called with the inputs alone and returns its outputs:
    one tensor, or an array of several. That is for outputs whose shape depends on data.
    """

    kind: str
    blob: bytes
    allocates: bool = False
    captures: bool = True
    """On a GPU: it may be captured in a CUDA graph, i.e. it never waits for the host."""


@dataclass(frozen=True)
class TirKernel:
    """A kernel that is one TIR function: `module` holds it under `symbol`.

    Called with inputs, then `constants`, then outputs.
    """

    module: "tvm.IRModule"
    symbol: str
    constants: tuple[np.ndarray, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True)
class CudaKernel:
    """A kernel that nvcc compiled: the shared library `file` exports the function `symbol`.

    Called with device tensors: inputs, then `constants`, then `scratch` bytes to write in where it wants any,
    then outputs, on TVM's current stream.
    """

    file: Path
    symbol: str
    constants: tuple[np.ndarray, ...] = ()
    scratch: int = 0


Kernel = PluginKernel | TirKernel | CudaKernel
Unsupported = Callable[["Function", int], str | None]


class Backend(abc.ABC):
    """One toolchain. Subclass it and register the class (entry point group `collage.backends`)."""

    name: str
    style: BackendStyle = BackendStyle.LIBRARY
    device: str = "cpu"
    """Where its kernels run: one of `collage.options.DEVICES`."""
    conflicts: frozenset[str] = frozenset()
    """Names of backends whose libraries cannot be in one process with its own: no plan has both, and no
    process measures both. It is enough that one of the two says so."""
    fewer_flops: bool = False
    """Its algorithms need fewer FLOP than direct ones: its speed says nothing of the machine's peak."""
    variants: tuple[str, ...] = ("",)
    """Implementations offered for one region; each is measured as a candidate of its own."""
    reduced: Mapping[str, str] = MappingProxyType({})
    """Further variants that compute products in less than float32, each with what it computes in
    ("bf16", "tf32"). They are candidates only where the user allows it, on regions that hold a product, and
    are judged by the error budget."""
    elsewhere: str = ""
    """Its identity on the machine that measures, where that is not this one."""
    captures: bool = True
    """On a GPU: its kernels may be captured in CUDA graphs (`PluginKernel.captures`). A plan with one that
    may not launches every kernel from the host."""
    recipes: Path | None = None
    """Where whoever compiles keeps what a variant needs beyond its name (a tuned schedule)."""

    cache: Path | None = None
    """Where what takes long to compile is kept for other runs; None is the user's local store."""

    @abc.abstractmethod
    def availability(self) -> Availability:
        """Tell whether the toolchain can be used on this machine, with versions, else why not."""

    def available_for(self, part: Part) -> Availability:
        """Tell whether the toolchain can be used here for a part of the work."""
        if part is Part.BUILD:
            return self.building()
        return self.running() if part is Part.RUN else self.availability()

    def building(self) -> Availability:
        """Tell whether kernels can be built here for another machine that has all the rest."""
        return self.availability()

    def running(self) -> Availability:
        """Tell whether kernels that were built elsewhere can run here."""
        return self.availability()

    @abc.abstractmethod
    def unsupported(self, function: "Function", node: int) -> str | None:
        """Return why `node` cannot run here, or None when it can."""

    @abc.abstractmethod
    def compile(
        self, function: "Function", nodes: IndexSet, threads: int, variant: str = ""
    ) -> Kernel:
        """Compile the region. Raises BackendError with the toolchain's own words on refusal."""

    def reduced_reason(self) -> str:
        """Return why the reduced variants are not offered on this machine, "" when they are."""
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
        """Name the toolchains that are measured together, in one Job of a cluster: those of one style."""
        return self.style.value

    @property
    def identity(self) -> str:
        """Name and versions; part of every cost key."""
        if self.elsewhere:
            return self.elsewhere
        versions = sorted(self.availability().libraries.items())
        return f"{self.name} " + " ".join(f"{lib}={version}" for lib, version in versions)


def conflicts_of(backends: Iterable[Backend]) -> dict[str, frozenset[str]]:
    """Return for each backend that has any the others of these that it cannot share a process with."""
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

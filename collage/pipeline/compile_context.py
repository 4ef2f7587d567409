"""Compile context: options, backends, costs, a work folder, clocks and counts of one compile."""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collage.backends.base import Backend, BuildContext, conflicts_of
from collage.backends.registry import available_backends
from collage.cost import CostTable, Environment, LocalCostTable, SharedCostTable
from collage.errors import OptionError, StoreError
from collage.measure.environment import this_environment
from collage.measure.measurement_request import SearchMeasurer
from collage.options import Options
from collage.report.progress import Progress, SilentProgress
from collage.search.function_search import FunctionSearch
from collage.store import open_store
from collage.store.base import Store
from collage.store.cache_pruning import prune_cache
from collage.store.scratch import scratch_folder

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

STAGES = ("import", "enumerate", "measure", "search", "tune", "assemble", "verify")


@dataclass
class Seconds:
    """Wall seconds of each stage, summed over the functions."""

    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.stages[stage] += time.monotonic() - start


@dataclass
class Counts:
    """Numbers of candidates; `unique` counts structurally different ones."""

    enumerated: int = 0
    unique: int = 0
    measured: int = 0
    cached: int = 0
    invalid: int = 0

    def add(self, measurer: SearchMeasurer) -> None:
        """Add the counts of a measurer."""
        self.measured += measurer.measured
        self.cached += measurer.cached
        self.invalid += measurer.invalid


@dataclass
class Tuning:
    """Results of tuning: trials, structurally different kernels, and the predicted gain of better plans."""

    trials: int = 0
    failed: int = 0
    kernels: int = 0
    tuned: int = 0
    saved_s: float = 0.0


@dataclass
class CompileContext:
    """Shared state of the stages of one compile.

    Attributes:
        options: options of the compile.
        backends: available backends.
        environment: hardware and system of the measuring machine.
        table: cost table.
        progress: display of the stages.
        work_dir: temporary folder.
        store: shared store; None: no sharing.
        seconds: wall time of the stages.
        counts: numbers of candidates.
        tuning: results of tuning.
        chosen: names of the backends of the compiled functions, which share a process with later ones.
        notes: notes of the stages for the report.
        body_searches: finished searches of bodies of control flow, by the digest of the body.
    """

    options: Options
    backends: Sequence[Backend]
    environment: Environment
    table: CostTable
    progress: Progress
    work_dir: Path
    store: Store | None = None
    seconds: Seconds = field(default_factory=Seconds)
    counts: Counts = field(default_factory=Counts)
    tuning: Tuning = field(default_factory=Tuning)
    chosen: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    body_searches: dict[str, FunctionSearch] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        return self.environment.threads

    @property
    def tuned_schedules_dir(self) -> Path:
        """Folder of the tuned schedules, by name."""
        return self.work_dir / "tuned_schedules"

    @property
    def bodies_dir(self) -> Path:
        """Folder of the plans for bodies of control flow."""
        return self.work_dir / "bodies"

    @property
    def build(self) -> BuildContext:
        """Threads and folders for builds of kernels."""
        return BuildContext(
            self.threads,
            self.tuned_schedules_dir,
            self.options.store_dir,
            bodies_dir=self.bodies_dir,
        )

    @property
    def compatible_backends(self) -> list[Backend]:
        """Backends that can share a process with the chosen ones."""
        conflicts = conflicts_of(self.backends)
        return [
            backend
            for backend in self.backends
            if not conflicts.get(backend.name, set()) & self.chosen
        ]


@contextmanager
def open_compile_context(
    options: Options,
    progress: Progress | None = None,
    environment: Environment | None = None,
    backends: Sequence[Backend] | None = None,
) -> Iterator[CompileContext]:
    """Open the shared state of the stages; measured costs are in the store when the context ends.

    Args:
        options: options of the compile.
        progress: display of the stages; None: no display.
        environment: environment of the measuring machine; None: this machine.
        backends: backends of that machine; None: the available ones of the options.

    Raises:
        OptionError: a backend or the store's address is invalid, or no backend is available.
        StoreError: the store does not answer.
    """
    if backends is None:
        backends = available_backends(options.backends, options.device)
    if not backends:
        raise OptionError("no backend is available; `collage backends` says why")
    prune_cache(options.store_dir)
    store = None if options.store is None else open_store(options.store)
    local = LocalCostTable(options.store_dir)
    table = local if store is None else SharedCostTable(store, local, time.monotonic)
    environment = environment or _this_machine(options)
    with work_folder(options.store_dir) as work_dir:
        context = CompileContext(
            options,
            backends,
            environment,
            table,
            progress=progress or SilentProgress(),
            work_dir=work_dir,
            store=store,
        )
        try:
            yield context
        except BaseException as error:
            if not isinstance(error, StoreError):  # a failed store would delay the error again
                context.table.flush()
            raise
        context.table.flush()


@contextmanager
def work_folder(store: Path) -> Iterator[Path]:
    """Make a folder for this compile. A full disk is a StoreError, also later, while the folder is in use."""
    is_usable = False
    try:
        with scratch_folder(store / "tmp", "compile-") as folder:
            is_usable = True
            yield folder
    except OSError as error:
        if is_usable and error.errno not in FULL_DISK:
            raise
        raise StoreError(
            f"the store {store} cannot be written: {error.strerror}; free space there or choose "
            "another folder with --cache-dir"
        ) from error


def _this_machine(options: Options) -> Environment:
    processors = os.cpu_count() or 1
    if options.thread_count > processors:
        raise OptionError(
            f"threads must be at most {processors}, the processors of this machine, "
            f"not {options.thread_count}; compile on the kind of machine that serves"
        )
    return this_environment(options.thread_count, options.target)

"""What the stages of one compile share: options, backends, costs, a folder, clocks and counts."""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collage.backends.base import Backend, conflicts_of
from collage.backends.registry import available_backends, with_folders
from collage.cost import Costs, CostTable, Environment, SharedCostTable
from collage.errors import OptionError, StoreError
from collage.measure.environment import this_environment
from collage.measure.measurement_request import SearchMeasurer
from collage.options import Options
from collage.report.progress import Progress, SilentProgress
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
    """How many candidates the search met; `unique` counts structurally different ones."""

    enumerated: int = 0
    unique: int = 0
    measured: int = 0
    cached: int = 0
    invalid: int = 0

    def add(self, measurer: SearchMeasurer) -> None:
        """Add what the measurer has met."""
        self.measured += measurer.measured
        self.cached += measurer.cached
        self.invalid += measurer.invalid


@dataclass
class Tuning:
    """What tuning did: trials, structurally different kernels, and what better plans save."""

    trials: int = 0
    failed: int = 0
    kernels: int = 0
    tuned: int = 0
    saved_s: float = 0.0


@dataclass
class Session:
    """What the stages of one compile share."""

    options: Options
    backends: Sequence[Backend]
    environment: Environment
    table: Costs
    progress: Progress
    work_dir: Path
    store: Store | None = None
    seconds: Seconds = field(default_factory=Seconds)
    counts: Counts = field(default_factory=Counts)
    tuning: Tuning = field(default_factory=Tuning)
    chosen: set[str] = field(default_factory=set)
    """Backends of the functions that are compiled: they share a process with those that come."""

    @property
    def threads(self) -> int:
        return self.environment.threads

    @property
    def compatible_backends(self) -> list[Backend]:
        """Those that can share a process with the ones that are chosen."""
        conflicts = conflicts_of(self.backends)
        return [one for one in self.backends if not conflicts.get(one.name, set()) & self.chosen]


@contextmanager
def open_session(
    options: Options,
    progress: Progress | None = None,
    environment: Environment | None = None,
    backends: Sequence[Backend] | None = None,
) -> Iterator[Session]:
    """Open what the stages share; what was measured is in the store when the context ends.

    Args:
        options: of the compile.
        progress: shows the stages; None shows nothing.
        environment: of the machine that measures; None is this one.
        backends: of that machine; None are those of the options that can be used here.

    Raises:
        OptionError: a backend or the store's address makes no sense, or no backend is available.
        StoreError: the store does not answer.
    """
    if backends is None:
        backends = available_backends(options.backends, options.device)
    if not backends:
        raise OptionError("no backend is available; `collage backends` says why")
    prune_cache(options.store_dir)
    store = None if options.store is None else open_store(options.store)
    local = CostTable(options.store_dir)
    table = local if store is None else SharedCostTable(store, local, time.monotonic)
    environment = environment or _this_machine(options)
    with work_folder(options.store_dir) as work_dir:
        session = Session(
            options,
            [with_folders(one, work_dir / "recipes", options.store_dir) for one in backends],
            environment,
            table,
            progress or SilentProgress(),
            work_dir,
            store,
        )
        try:
            yield session
        except BaseException as error:
            if not isinstance(error, StoreError):  # else the store would be waited for once more
                session.table.flush()
            raise
        session.table.flush()


@contextmanager
def work_folder(store: Path) -> Iterator[Path]:
    """Make a folder for this compile; a disk that fills up while it is used is a StoreError too."""
    made = False
    try:
        with scratch_folder(store / "tmp", "compile-") as folder:
            made = True
            yield folder
    except OSError as error:
        if made and error.errno not in FULL_DISK:
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
    return this_environment(options.thread_count, options.device)

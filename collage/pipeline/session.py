"""What the stages of one compile share: options, backends, costs, a folder, clocks and counts."""

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collage.backends.base import Backend
from collage.cost import Costs, CostTable, Environment, SharedCostTable
from collage.errors import StoreError
from collage.options import Options
from collage.report.terminal import Progress
from collage.store import open_store
from collage.store.scratch import scratch_folder

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

STAGES = ("import", "enumerate", "measure", "search", "assemble", "verify")


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


@dataclass
class Session:
    """What the stages of one compile share."""

    options: Options
    backends: Sequence[Backend]
    environment: Environment
    table: Costs
    progress: Progress
    work_dir: Path
    seconds: Seconds = field(default_factory=Seconds)
    counts: Counts = field(default_factory=Counts)

    @property
    def threads(self) -> int:
        return self.environment.threads


def open_costs(options: Options) -> Costs:
    """Open the table of costs: the local one, or the one that machines share through a store.

    Raises:
        OptionError: the store's address makes no sense.
        StoreError: the store does not answer.
    """
    local = CostTable(options.store_dir)
    if options.store is None:
        return local
    return SharedCostTable(open_store(options.store), local, time.monotonic)


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

"""Limits of local caches: removal of files unused for long, then of the oldest above a size.

All content of a cache is available again from a store or by measurement. So a file is deleted after
`Limit.keep_s` without a read or write, and the least recently used files are deleted while the folder exceeds
`Limit.max_bytes`. Reads count as the file system records them (`relatime`: once a day). Linear in the number
of files, at most once a day.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

DAY_S = 24 * 3600.0
GIB = 1 << 30
STAMP = ".pruned"


@dataclass(frozen=True)
class Limit:
    """Lifetime of a file after its last use, in seconds, and size limit of a folder, in bytes."""

    keep_s: float
    max_bytes: int


FETCHED = Limit(30 * DAY_S, 20 * GIB)
"""Limit of cached files of bundles."""

CACHES: Mapping[str, Limit] = MappingProxyType(
    {
        "costs": Limit(180 * DAY_S, 4 * GIB),
        "engines": Limit(90 * DAY_S, 20 * GIB),
        "fetched": FETCHED,
        "nvcc": Limit(90 * DAY_S, 4 * GIB),
        "searches": Limit(90 * DAY_S, GIB),
        "tuning": Limit(180 * DAY_S, 4 * GIB),
    }
)
"""Limit of each folder of the local cache."""


def prune_cache(cache: Path) -> int:
    """Prune all folders of a local cache, at most once a day; return the number of deleted bytes."""
    if not _is_due(cache):
        return 0
    return sum(prune(cache / name, limit) for name, limit in CACHES.items())


def prune_fetched(folder: Path) -> int:
    """Prune a folder of fetched files, at most once a day; return the number of deleted bytes."""
    return prune(folder, FETCHED) if _is_due(folder) else 0


def prune(folder: Path, limit: Limit) -> int:
    """Delete files beyond the age limit, then beyond the size limit; return the deleted bytes.

    Inaccessible files, and files under concurrent deletion, are skipped.
    """
    files = sorted(_files(folder))
    remaining_bytes, freed_bytes = sum(size for _, size, _ in files), 0
    oldest = time.time() - limit.keep_s
    for used, size, path in files:
        if used >= oldest and remaining_bytes <= limit.max_bytes:
            break
        with suppress(OSError):  # deleted meanwhile, or another user's
            path.unlink()
            remaining_bytes, freed_bytes = remaining_bytes - size, freed_bytes + size
    return freed_bytes


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return last use, size and path of the files below a folder, without links."""
    files = []
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            with suppress(OSError):  # deleted meanwhile, or another user's
                state = path.lstat()
                if path.is_file() and not path.is_symlink() and name not in (STAMP, "lock"):
                    files.append((max(state.st_mtime, state.st_atime), state.st_size, path))
    return files


def _is_due(folder: Path) -> bool:
    """Tell whether the last pruning is a day ago, and record a new one."""
    stamp = folder / STAMP
    with suppress(OSError):  # a read-only folder is not pruned
        if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY_S:
            return False
        if folder.is_dir():
            stamp.touch()
            return True
    return False

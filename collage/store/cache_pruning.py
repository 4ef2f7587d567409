"""Local caches do not grow without end: what nobody has used for long goes, then the oldest above a size.

Everything in a cache can be had again, from a store or by measuring, so a file is deleted without asking
once it was neither written nor read for `Limit.keep_s`, and the least recently used ones go where the folder
is larger than `Limit.most_bytes`. Reading counts as far as the file system notes it (`relatime` does, once
a day). Linear in the number of files, and done at most once a day.
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
    """How long a file stays after its last use, in seconds, and how large a folder may be."""

    keep_s: float
    most_bytes: int


FETCHED = Limit(30 * DAY_S, 20 * GIB)
"""Files of bundles."""

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
"""The folders of the local cache."""


def prune_cache(cache: Path) -> int:
    """Prune all folders of a local cache, at most once a day; return how many bytes went."""
    if not _is_due(cache):
        return 0
    return sum(prune(cache / name, limit) for name, limit in CACHES.items())


def prune_fetched(folder: Path) -> int:
    """Prune a folder of fetched files, at most once a day; return how many bytes went."""
    return prune(folder, FETCHED) if _is_due(folder) else 0


def prune(folder: Path, limit: Limit) -> int:
    """Delete what is too old, then what is too much; return how many bytes went.

    Files that cannot be looked at or deleted, or that others delete at this moment, are left alone.
    """
    files = sorted(_files(folder))
    left, freed = sum(size for _, size, _ in files), 0
    oldest = time.time() - limit.keep_s
    for used, size, path in files:
        if used >= oldest and left <= limit.most_bytes:
            break
        with suppress(OSError):
            path.unlink()
            left, freed = left - size, freed + size
    return freed


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Return last use, size and path of the files below a folder; links are none."""
    found = []
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            with suppress(OSError):
                state = path.lstat()
                if path.is_file() and not path.is_symlink() and name not in (STAMP, "lock"):
                    found.append((max(state.st_mtime, state.st_atime), state.st_size, path))
    return found


def _is_due(folder: Path) -> bool:
    """Tell whether a day has passed since the last time, and note that it is done now."""
    stamp = folder / STAMP
    with suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY_S:
            return False
        if folder.is_dir():
            stamp.touch()
            return True
    return False

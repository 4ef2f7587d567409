"""Folders that belong to a running process and are removed after it, even after kill -9.

The owner holds a lock on its folder. A folder that nobody locks is a dead process's and may go;
numbers of processes say nothing, because in containers they repeat.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collage.store.atomic_folder import make_folders


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a folder under `parent`, removed at the end; those of dead processes are removed first.

    Raises:
        OSError: `parent` cannot be written.
    """
    make_folders(parent)
    _remove_abandoned(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _try_lock(folder)
        if lock is not None and folder.exists():
            break  # otherwise another process took the new folder for an abandoned one
        if lock is not None:
            os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        lock = _try_lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """Return a descriptor that holds the lock, None where another process holds it or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor

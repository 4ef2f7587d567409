"""Scratch folders of running processes, removed after their process, even after kill -9.

The owner holds a lock on its folder. An unlocked folder belongs to a dead process and is removed. Process
numbers would not tell: they repeat in containers.
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
    """Create a folder under `parent` for the duration of the context; remove abandoned ones first.

    Raises:
        OSError: `parent` is not writable.
    """
    make_folders(parent)
    _remove_abandoned(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = _try_lock(folder)
        if lock is not None and folder.exists():
            break  # without the lock, another process removes the new folder as abandoned
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
    """Return a descriptor with the lock, or None if another process has it or the folder is gone."""
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

"""Atomic replacement of local folders, and durable writes."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collage.errors import BundleError, StoreError

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})


def check_output(output: Path) -> None:
    """Raise BundleError unless `output` is free, empty or an older bundle."""
    above = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not (above.is_file() or os.access(above, os.W_OK)):
        raise BundleError(f"{output}: {above} cannot be written; name another folder")
    if above != output and not above.is_dir():
        raise BundleError(f"{output}: {above} is a file; name another folder for the bundle")
    if not output.exists():
        return
    if not output.is_dir():
        raise BundleError(f"{output} is a file; name a folder for the bundle with --output")
    names = {entry.name for entry in output.iterdir()}
    if names and "manifest.json" not in names:
        raise BundleError(
            f"{output} holds files but no bundle; it is not overwritten. Name another folder."
        )


def replace_folder(partial: Path, output: Path, scratch: Path) -> None:
    """Replace the folder `output` by `partial`, a folder inside `scratch`.

    The old folder is in `scratch` afterwards. The two are exchanged in one step, so readers and the state
    after a kill have the old folder or the new one. On a file system without an exchange (NFS, some
    overlays) there are two renames, with neither folder in between. All of `partial` is on disk before the
    exchange, and its new name at the return.
    """
    flush_tree(partial)
    if output.exists():
        if not exchange(partial, output):
            output.rename(scratch / "old")
            partial.rename(output)
    else:
        partial.rename(output)
    flush_folder(output.parent)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; return False if the system cannot.

    Raises:
        OSError: the exchange of these two names fails.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def write_durably(file: Path, data: bytes) -> None:
    """Write a file, on disk at the return."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in `folder` (of a file: its content) to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path) -> None:
    """Flush the folder and all files and folders below it to disk."""
    for above, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush_folder(Path(above, name))
        flush_folder(Path(above))


def make_folders(folder: Path, mode: int | None = None) -> None:
    """Create the folder and its absent parents, with their names on disk at the return.

    Args:
        mode: mode of new folders; None applies the umask.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for absent in reversed(missing):
        try:
            absent.mkdir()
        except FileExistsError:
            if not absent.is_dir():
                raise
        else:
            if mode is not None:
                absent.chmod(mode)
        flush_folder(absent.parent)


@contextmanager
def file_explained(file: Path) -> Iterator[None]:
    """Convert an OSError of writing the local `file` to a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error

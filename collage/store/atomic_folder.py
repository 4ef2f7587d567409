"""Local folders that are written whole or not at all."""

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
    """Let `partial`, a folder in the folder `scratch`, take the place of `output`.

    What was there is in `scratch` afterwards. The two change places in one step, so that whoever looks,
    and whoever is killed, finds the old folder or the new one. A file system without such a step (NFS,
    some overlays) gets two renames, between which there is neither. All of `partial` is on disk before that,
    and its new name when this returns.
    """
    flush_tree(partial)
    if output.exists():
        if not exchange(partial, output):
            output.rename(scratch / "old")
            partial.rename(output)
    else:
        partial.rename(output)
    flush_folder(output.parent)


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step; return False where the system cannot.

    Raises:
        OSError: it can, but not with these two.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def write_durably(file: Path, data: bytes) -> None:
    """Write a file that is on disk when this returns."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Let the names in `folder` be on disk (or the content, of a file)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path) -> None:
    """Let all files and folders below `folder`, and it, be on disk."""
    for above, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush_folder(Path(above, name))
        flush_folder(Path(above))


def make_folders(folder: Path, mode: int | None = None) -> None:
    """Make the folder and those above that are missing; their names are on disk when this returns.

    Args:
        mode: of new ones; None leaves it to the umask.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder == folder.parent:
            break
        folder = folder.parent
    for one in reversed(missing):
        try:
            one.mkdir()
        except FileExistsError:
            if not one.is_dir():
                raise
        else:
            if mode is not None:
                one.chmod(mode)
        flush_folder(one.parent)


@contextmanager
def file_explained(file: Path) -> Iterator[None]:
    """Turn an OSError of writing the local `file` into a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
